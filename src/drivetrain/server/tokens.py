"""`/tokenize` and `/detokenize`: a prompt or a chat as token ids, and back."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import parse_messages
from drivetrain.core.worker import Worker
from drivetrain.server.bodies import read_body
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response, renamed
from drivetrain.server.schema import DetokenizeBody, TokenizeBody


async def tokenize(request: Request, context: Context) -> Response:
    read = read_body(await request.body(), TokenizeBody, unknown=context.settings.unknown_fields)
    body = read.body
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    async with context.models.lease(body.model) as worker:
        ids = await _tokenized(body, worker)
        known = worker.metadata.context_length
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": known}, headers=read.headers)


async def _tokenized(body: TokenizeBody, worker: Worker) -> list[int]:
    limits = worker.capabilities.limits
    if body.messages is not None and len(parse_messages(body.messages)) > limits.max_messages:
        raise InvalidRequest(f"messages has more than {limits.max_messages} entries", param="messages")
    try:
        return await worker.tokenize(body.prompt, messages=body.messages)
    except InvalidRequest as exc:
        raise renamed(exc, {"text": "prompt" if body.messages is None else "messages"}) from exc


async def detokenize(request: Request, context: Context) -> Response:
    read = read_body(await request.body(), DetokenizeBody, unknown=context.settings.unknown_fields)
    async with context.models.lease(read.body.model) as worker:
        text = await worker.detokenize(read.body.tokens)
    return json_response({"prompt": text}, headers=read.headers)
