"""`/v1/embeddings`. `dimensions` must be the model's own: few models are trained for less, so nothing is cut."""

from __future__ import annotations

import base64
import struct
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.results import Embeddings
from drivetrain.core.worker import Worker
from drivetrain.server.bodies import read_body
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.schema import EmbeddingBody
from drivetrain.server.translate import as_list, trace_headers


async def embeddings(request: Request, context: Context) -> Response:
    read = read_body(await request.body(), EmbeddingBody, unknown=context.settings.unknown_fields)
    body = read.body
    inputs: Any = as_list(body.input, "input")
    lease = context.models.lease(body.model, body.timeout_s)
    async with lease as worker:
        _check(body, worker)
        timeout_s, trace = lease.left_s or body.timeout_s, trace_headers(request.headers)
        found = await worker.embed(inputs, timeout_s=timeout_s, trace_context=trace)
    return json_response(_document(body, found), headers=read.headers)


def _check(body: EmbeddingBody, worker: Worker) -> None:
    capabilities = worker.capabilities
    if not capabilities.embeddings:
        raise Unsupported("this model gives no embeddings", param="input")
    if body.dimensions not in {None, worker.metadata.embedding_size}:
        raise Unsupported(
            f"dimensions is {body.dimensions}; this model gives {worker.metadata.embedding_size} and none are cut",
            param="dimensions",
        )
    if body.timeout_s is not None:
        PARAMETERS["timeout_s"].rule("timeout_s", body.timeout_s)
        limit = capabilities.limits.max_timeout_s
        if body.timeout_s > limit:
            raise InvalidRequest(f"timeout_s is {body.timeout_s:g}; the limit is {limit:g}", param="timeout_s")


def _document(body: EmbeddingBody, found: Embeddings) -> dict[str, Any]:
    encode = as_base64 if body.encoding_format == "base64" else list
    data = [
        {"object": "embedding", "index": index, "embedding": encode(vector)}
        for index, vector in enumerate(found.vectors)
    ]
    usage = {"prompt_tokens": found.usage.prompt_tokens, "total_tokens": found.usage.total_tokens}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


def as_base64(vector: tuple[float, ...]) -> str:
    """Little-endian 32-bit floats, as the `openai` client unpacks them."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
