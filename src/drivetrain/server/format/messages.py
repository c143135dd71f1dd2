"""`/v1/messages`, Anthropic's API: what an answer looks like, whole and as events; and the count of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import DrivetrainError, InvalidRequest
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.parameters import check
from drivetrain.core.results import FinishReason, MatchedStop, Result, Usage
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response, renamed
from drivetrain.server.faces import anthropic_error
from drivetrain.server.format.blocks import Block, BlockEvent, BlockKind, Blocks, Grown, Opened, blocks_of
from drivetrain.server.format.openai import compact, receipt_field, receipt_json
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_request
from drivetrain.server.parse.body import Values
from drivetrain.server.parse.messages import COUNT, MESSAGES, messages_request
from drivetrain.server.parse.translate import ParsedRequest, honoured


async def messages(exchange: Exchange, context: Context) -> None:
    values, parsed = await read_request(exchange, context, MESSAGES, _maker(exchange, context))
    stops = frozenset(values.get("stop_sequences", ()))
    formatter = partial(MessagesFormatter, values["model"], stops, values["max_tokens"])
    await answer(exchange, context, values["model"], parsed, formatter)


async def count_tokens(exchange: Exchange, context: Context) -> Response:
    values, parsed = await read_request(exchange, context, COUNT, _maker(exchange, context))
    async with context.models.lease(values["model"]) as worker:
        parsed = honoured(parsed, worker.capabilities)
        (request,) = parsed.requests
        try:
            check(request, worker.capabilities)
            ids = await worker.tokenize(
                messages=request.messages,
                tools=request.offered_tools,
                chat_template_kwargs=request.chat_template_kwargs,
                reasoning_effort=request.reasoning_effort,
            )
        except InvalidRequest as exc:
            raise renamed(exc, {**parsed.names, "text": "messages"}) from exc
    return json_response({"input_tokens": len(ids)}, headers=parsed.headers)


def _maker(exchange: Exchange, context: Context) -> Callable[[Values], ParsedRequest]:
    keeps = context.settings.keep_billing_line
    return partial(messages_request, headers=exchange.headers, keeps_billing_line=keeps)


class MessagesFormatter:
    content_type = "text/event-stream; charset=utf-8"
    head_first = False

    def __init__(self, model: str, stops: frozenset[str], max_tokens: int, parsed: ParsedRequest) -> None:
        self._model = model
        self._stops = stops
        self._max_tokens = max_tokens if parsed.overflow is not None else 0
        self._id = parsed.id
        self._blocks = Blocks()
        self._ended: tuple[FinishReason | None, MatchedStop | None] = (None, None)
        self._receipt: dict[str, Any] = {}

    def whole(self, results: Sequence[Result], usage: Usage) -> dict[str, Any]:
        (result,) = results
        (choice,) = result.choices
        content = [_whole_block(block) for block in blocks_of(choice)]
        ended = self._ending(choice.finish_reason, choice.matched_stop, usage)
        return {**self._message(content, usage), **ended, **receipt_json(results)}

    # As events

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        return b"".join([self._of(event) for event in events])

    def end(self, usage: Usage) -> bytes:
        ending = _event("message_delta", delta=self._ending(*self._ended, usage), usage=_usage_json(usage))
        return ending + _event("message_stop", **self._receipt)

    def failure(self, error: DrivetrainError) -> bytes:
        return _event("error", **anthropic_error(error))

    def _of(self, event: Event) -> bytes:
        if type(event) is Delta:
            return _told(self._blocks.take(event))
        if type(event) is ChoiceFinished:
            self._ended = (event.reason, event.matched_stop)
            return _told(self._blocks.end())
        if type(event) is Finished:
            self._receipt = receipt_field(event)
        if type(event) is Started:
            return _event("message_start", message=self._message([], Usage(event.prompt_tokens)))
        return b""

    def _message(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        used = {**_usage_json(usage), **_NOT_USED}
        return {**head, "content": content, "stop_reason": None, "stop_sequence": None, "usage": used}

    def _ending(self, reason: FinishReason | None, matched: MatchedStop | None, usage: Usage) -> dict[str, Any]:
        stop = matched if isinstance(matched, str) and matched in self._stops else None
        if reason is FinishReason.STOP and stop is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        if reason is FinishReason.LENGTH and usage.completion_tokens < self._max_tokens:
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        return {"stop_reason": _REASONS.get(reason) if reason is not None else None, "stop_sequence": None}


_REASONS = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use"}

UNSIGNED = "unsigned"
"""The signature of reasoning: clients send it back, and nothing here depends on it."""


def _told(events: Iterable[BlockEvent]) -> bytes:
    told: list[bytes] = []
    for event in events:
        index = event.block.index
        if isinstance(event, Opened):
            told.append(_event("content_block_start", index=index, content_block=_empty_block(event.block)))
        elif isinstance(event, Grown):
            told.append(_event("content_block_delta", index=index, delta=_delta(event.block, event.text)))
        else:
            if event.block.kind is BlockKind.REASONING:
                signature = {"type": "signature_delta", "signature": UNSIGNED}
                told.append(_event("content_block_delta", index=index, delta=signature))
            told.append(_event("content_block_stop", index=index))
    return b"".join(told)


def _event(name: str, /, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {compact({'type': name, **fields})}\n\n".encode()


def _empty_block(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": "", "citations": None}


def _delta(block: Block, text: str) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return {"type": "input_json_delta", "partial_json": text}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _whole_block(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return _empty_block(block) | {"input": block.arguments}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": UNSIGNED}
    return {"type": "text", "text": block.text, "citations": None}


_NOT_USED = {
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "server_tool_use": None,
    "service_tier": "standard",
}


def _usage_json(usage: Usage) -> dict[str, int]:
    """The prompt's tokens are told apart by where they came from."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
