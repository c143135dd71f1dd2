"""`/tokenize` and `/detokenize`: a prompt or a chat as token ids, and back. `/tokenizer_info`: what else is known."""

from __future__ import annotations

from starlette.responses import Response

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.worker import WorkerPort
from drivetrain.server.context import Context
from drivetrain.server.encoding import encoded
from drivetrain.server.errors import json_response, renamed
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_body
from drivetrain.server.parse.body import Values
from drivetrain.server.parse.schema import DETOKENIZE, TOKENIZE


async def tokenize(exchange: Exchange, context: Context) -> Response:
    values = await read_body(exchange, context, TOKENIZE)
    async with context.models.lease(values.get("model")) as worker:
        ids = await _tokenized(values, worker)
        context_length = worker.metadata.context_length
    return json_response(
        await encoded({"tokens": ids, "count": len(ids), "max_model_len": context_length}), headers=values.headers
    )


async def _tokenized(values: Values, worker: WorkerPort) -> list[int]:
    limits = worker.capabilities.limits
    prompt, messages, tools = values.get("prompt"), values.get("messages"), values.get("tools")
    if messages is not None and len(messages) > limits.max_messages:
        raise InvalidRequest(f"messages has more than {limits.max_messages} entries", param="messages")
    try:
        special = values.get("add_special_tokens")
        suffix = values.get("suffix")
        return await worker.tokenize(prompt, suffix=suffix, messages=messages, tools=tools, add_special_tokens=special)
    except InvalidRequest as exc:
        raise renamed(exc, {"text": "prompt" if messages is None else "messages"}) from exc


async def tokenizer_info(exchange: Exchange, context: Context) -> Response:
    """For clients that render chats or split texts themselves, as vLLM has it."""
    async with context.models.lease(exchange.query_params.get("model")) as worker:
        metadata = worker.metadata
    return json_response(await encoded({**metadata.named_tokens, "chat_template": metadata.chat_template}))


async def detokenize(exchange: Exchange, context: Context) -> Response:
    values = await read_body(exchange, context, DETOKENIZE)
    async with context.models.lease(values.get("model")) as worker:
        text = await worker.detokenize(values["tokens"])
    return json_response(await encoded({"prompt": text}), headers=values.headers)
