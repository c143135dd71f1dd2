"""DB-GPT's worker protocol under `/api/worker`: what its API server and its clients ask of a remote worker.

Chats come as messages, so the worker renders them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.errors import DrivetrainError, InvalidRequest, Unsupported
from drivetrain.core.kinds import Boolean, Kind, ListOf, Schema, String
from drivetrain.core.messages import Message, parse_messages
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.results import Metrics
from drivetrain.core.worker import WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.dropin.answers import SoFar, SoFarFormatter, respond
from drivetrain.server.dropin.codes import code_of
from drivetrain.server.dropin.translate import SAMPLING, parsed_request, sampling
from drivetrain.server.encoding import encoded
from drivetrain.server.errors import json_response
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body, read_request
from drivetrain.server.parse.body import Body, Field, Values
from drivetrain.server.parse.schema import MODEL_OR_ONLY, Object, inert, like
from drivetrain.server.parse.translate import ParsedRequest, trace_headers

_ROLES = {"human": "user", "ai": "assistant"}
_UNSEEN = "view"
"""The role of messages that are shown to people only, not to the model."""

_NAMES = {"max_tokens": "max_new_tokens", "context_length": "context_len"}


class _Messages(Kind):
    """Chats in DB-GPT's form."""

    takes = "a list of messages"

    def judge(self, name: str, value: Any) -> tuple[Message, ...] | None:
        if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
            raise self.refuse(name, value)
        messages = [message for message in value if message.get("role") != _UNSEEN]
        return parse_messages([_message(m, f"{name}[{i}]") for i, m in enumerate(messages)]) if messages else None

    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "object"}}


_SPAN = inert(String())

_GENERATE = Body(
    "DbGptGenerate",
    {
        "model": MODEL_OR_ONLY,
        "messages": Field(_Messages(), "the chat so far"),
        "prompt": like("prompt"),
        **SAMPLING,
        "context_len": like("context_length"),
        "echo": like("echo"),
        "version": inert(String()),
        "context": inert(Object()),
        "span_id": _SPAN,
        "metrics": inert(Boolean()),
        "chat_model": inert(Boolean()),
        "user": inert(String()),
    },
)

_NAMED = Body("DbGptNamed", {"model": MODEL_OR_ONLY, "prompt": Field(String(), "a string"), "span_id": _SPAN})
"""DB-GPT's own client does not name the model when it counts tokens."""

_EMBED = Body(
    "DbGptEmbed",
    {
        "model": MODEL_OR_ONLY,
        "input": Field(ListOf(String()), "texts", required=True),
        "worker_type": Field(String(), "only text2vec"),
        "query": Field(String(), "for workers that rank texts"),
        "span_id": _SPAN,
    },
)


async def _read(exchange: Exchange, context: Context) -> tuple[str | None, ParsedRequest]:
    body, parsed = await read_request(exchange, context, _GENERATE, partial(_parsed, exchange))
    return body.get("model"), parsed


class DbGptFormatter(SoFarFormatter):
    """Writes DB-GPT's `ModelOutput`."""

    def spell(self, so_far: SoFar) -> dict[str, Any]:
        usage, metrics = so_far.usage, so_far.metrics
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        }
        return _output(
            so_far.text,
            finish_reason=so_far.reason,
            usage=counts,
            metrics=None if metrics is None else {**counts, **_times(metrics)},
        )

    def failed(self, error: DrivetrainError) -> dict[str, Any]:
        return _output(error.message, error_code=code_of(error))


async def generate_stream(exchange: Exchange, context: Context) -> Response | None:
    return await respond(exchange, context, _read, DbGptFormatter(), stream=True)


async def generate(exchange: Exchange, context: Context) -> Response | None:
    return await respond(exchange, context, _read, DbGptFormatter(), stream=False)


async def embeddings(exchange: Exchange, context: Context) -> Response:
    body = await read_body(exchange, context, _EMBED)
    if body.get("worker_type", "text2vec") != "text2vec" or "query" in body:
        raise Unsupported("this worker returns embeddings; it cannot rank texts", param="worker_type")
    async with context.models.lease(body.get("model")) as worker:
        result = await worker.embed(body["input"], trace_context=trace_headers(exchange.headers))
    return json_response(await encoded(result.vectors), headers=body.headers)


async def count_token(exchange: Exchange, context: Context) -> Response:
    body = await read_body(exchange, context, _NAMED)
    async with context.models.lease(body.get("model")) as worker:
        count = len(await worker.tokenize(body.get("prompt", "")))
    return json_response(count, headers=body.headers)


async def model_metadata(exchange: Exchange, context: Context) -> Response:
    body = await read_body(exchange, context, _NAMED)
    lease = context.models.lease(body.get("model"))
    async with lease as worker:
        metadata = _metadata(body.get("model") or lease.name, worker)
    return json_response(metadata, headers=body.headers)


async def parameter_descriptions(request: Request, context: Context) -> Response:
    """The parameters that this model honours. A `GET` does not load a model."""
    worker = context.models.find(request.query_params.get("model"))
    return json_response([_described(name, worker) for name in sorted(worker.capabilities.parameters)])


async def supported_models(request: Request, context: Context) -> Response:
    """Models that could be started remotely: none."""
    return json_response([])


async def refuse(request: Request, context: Context) -> Response:
    raise Unsupported("this worker's models are started and stopped by drivetrain, not by DB-GPT")


ROUTES = (
    ("POST", "/api/worker/generate_stream", generate_stream),
    ("POST", "/api/worker/generate", generate),
    ("POST", "/api/worker/embeddings", embeddings),
    ("POST", "/api/worker/count_token", count_token),
    ("POST", "/api/worker/model_metadata", model_metadata),
    ("GET", "/api/worker/parameter/descriptions", parameter_descriptions),
    ("GET", "/api/worker/models/supports", supported_models),
    ("POST", "/api/worker/models/startup", refuse),
    ("POST", "/api/worker/models/shutdown", refuse),
    ("POST", "/api/worker/apply", refuse),
)


def _parsed(request: Request, body: Values) -> ParsedRequest:
    """The text begins with the prompt unless the request says otherwise; a chat is not repeated."""
    chat = "messages" in body
    values = {
        "messages": body.get("messages"),
        "prompt": None if chat else body.get("prompt"),
        "echo": body.get("echo", not chat),
        **sampling(body),
        "max_tokens": body.get("max_new_tokens"),
        "context_length": body.get("context_len"),
    }
    return parsed_request(request, body, values, _NAMES)


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list):
        content = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    return {"role": _ROLES.get(role, role) if isinstance(role, str) else role, "content": content}


def _part(part: object, where: str) -> dict[str, Any]:
    """One `MediaContent`: a text, or an image as a URL or in base64 (`url`, `base64@image/png`)."""
    kind, media = (part.get("type"), part.get("object")) if isinstance(part, dict) else (None, None)
    data, data_format = (media.get("data"), media.get("format", "text")) if isinstance(media, dict) else (None, "")
    if kind == "text" and isinstance(data, str):
        return {"type": "text", "text": data}
    encoding, _, mime = data_format.partition("@") if isinstance(data_format, str) else ("", "", "")
    if kind == "image" and isinstance(data, str) and encoding in {"url", "base64"}:
        url = data if encoding == "url" else f"data:{mime or 'image/png'};base64,{data}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise InvalidRequest(f"{where} must be a string, or an image as a url or base64", param=where)


def _output(
    text: str,
    *,
    error_code: int = 0,
    finish_reason: str | None = None,
    usage: dict[str, int] | None = None,
    metrics: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "content": {"object": {"data": text, "format": "text"}, "type": "text"},
        "error_code": error_code,
        "incremental": False,
        "model_context": None,
        "finish_reason": finish_reason,
        "usage": usage,
        "metrics": metrics,
    }


def _times(metrics: Metrics) -> dict[str, Any]:
    """The fields of DB-GPT's `ModelInferenceMetrics` that are known here."""
    start, end = metrics.started_at, metrics.started_at + metrics.total_s
    first = None if metrics.first_token_s is None else start + metrics.first_token_s
    return {
        "start_time_ms": round(start * 1000),
        "end_time_ms": round(end * 1000),
        "current_time_ms": round(end * 1000),
        "first_token_time_ms": None if first is None else round(first * 1000),
        "decode_tokens_per_second": metrics.tokens_per_s,
    }


def _metadata(name: str, worker: WorkerPort) -> dict[str, Any]:
    """DB-GPT's `ModelMetadata`."""
    roles: Sequence[str] = ("system", "human", "ai") if worker.capabilities.chat else ()
    return {
        "model": name,
        "label": None,
        "context_length": worker.capabilities.context_length,
        "max_output_length": None,
        "description": None,
        "link": None,
        "chat_model": worker.capabilities.chat,
        "function_calling": False,
        "metadata": {},
        "ext_metadata": {
            "prompt_roles": list(roles),
            "prompt_sep": worker.metadata.separator,
            "prompt_chat_template": None,
        },
    }


def _described(name: str, worker: WorkerPort) -> dict[str, Any]:
    """DB-GPT's `ParameterDescription`."""
    _, default = worker.metadata.sampling.get(name, (None, None))
    plain = default if isinstance(default, (int, float, str, bool)) else None
    return {
        "required": False,
        "is_array": False,
        "param_name": name,
        "param_class": "drivetrain.GenerateRequest",
        "param_type": "string" if plain is None else type(plain).__name__,
        "label": name,
        "description": PARAMETERS[name].meaning,
        "default_value": plain,
        "valid_values": None,
        "ext_metadata": None,
        "nested_fields": None,
        "param_order": None,
    }
