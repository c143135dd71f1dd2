"""`/v1/embeddings`. `dimensions` must be the model's own: few models support fewer, so vectors are not shortened."""

from __future__ import annotations

import base64
import struct
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import Unsupported
from drivetrain.core.results import Embeddings
from drivetrain.core.worker import WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.encoding import Each, encoded
from drivetrain.server.errors import json_response
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.parse.body import Values
from drivetrain.server.parse.schema import EMBEDDING, Encoding
from drivetrain.server.parse.translate import trace_headers


async def embeddings(exchange: Exchange, context: Context) -> Response:
    values = await read_body(exchange, context, EMBEDDING)
    result = await embedded(exchange, context, values, values["model"])
    return json_response(await encoded(_document(values, result)), headers=values.headers)


async def embedded(exchange: Exchange, context: Context, values: Values, model: str) -> Embeddings:
    """The vectors of the body's `input`."""
    lease = context.models.lease(model, values.get("timeout_s"))
    async with lease as worker:
        _check(values, worker)
        timeout_s, trace = lease.left_s or values.get("timeout_s"), trace_headers(exchange.headers)
        return await worker.embed(values["input"], timeout_s=timeout_s, trace_context=trace)


def _check(values: Values, worker: WorkerPort) -> None:
    capabilities = worker.capabilities
    if not capabilities.embeddings:
        raise Unsupported("this model does not produce embeddings", param="input")
    dimensions, size = values.get("dimensions"), worker.metadata.embedding_size
    if dimensions not in {None, size}:
        what = f"dimensions is {dimensions}; this model's vectors have {size}, and they cannot be shortened"
        values.leave_out(Unsupported(what, param="dimensions"))


def _document(values: Values, result: Embeddings) -> dict[str, Any]:
    encode = as_base64 if values.get("encoding_format") is Encoding.BASE64 else list

    def embedding_json(item: tuple[int, tuple[float, ...]]) -> dict[str, Any]:
        return {"object": "embedding", "index": item[0], "embedding": encode(item[1])}

    data = Each(list(enumerate(result.vectors)), embedding_json)
    usage = {"prompt_tokens": result.usage.prompt_tokens, "total_tokens": result.usage.total_tokens}
    return {"object": "list", "data": data, "model": values["model"], "usage": usage}


def as_base64(vector: tuple[float, ...]) -> str:
    """Little-endian 32-bit floats, as the `openai` client unpacks them."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
