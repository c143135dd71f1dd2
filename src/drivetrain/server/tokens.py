"""`/tokenize` and `/detokenize`: a prompt or a chat as token ids, and back."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import parse_messages
from drivetrain.server.bodies import read_body
from drivetrain.server.context import Context
from drivetrain.server.embeddings import unless_gone
from drivetrain.server.errors import json_response, renamed
from drivetrain.server.schema import DetokenizeBody, TokenizeBody


async def tokenize(request: Request, context: Context) -> Response:
    read = read_body(await request.body(), TokenizeBody, unknown=context.settings.unknown_fields)
    body = read.body
    _, worker = context.models.find_or_only(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    limits = worker.capabilities.limits
    if body.messages is not None and len(parse_messages(body.messages)) > limits.max_messages:
        raise InvalidRequest(f"messages has more than {limits.max_messages} entries", param="messages")
    try:
        ids = await unless_gone(worker.tokenize(body.prompt, messages=body.messages), request.receive)
    except InvalidRequest as exc:
        raise renamed(exc, {"text": "prompt" if body.messages is None else "messages"}) from exc
    known = worker.metadata.context_length
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": known}, headers=read.headers)


async def detokenize(request: Request, context: Context) -> Response:
    read = read_body(await request.body(), DetokenizeBody, unknown=context.settings.unknown_fields)
    _, worker = context.models.find_or_only(read.body.model)
    text = await unless_gone(worker.detokenize(read.body.tokens), request.receive)
    return json_response({"prompt": text}, headers=read.headers)
