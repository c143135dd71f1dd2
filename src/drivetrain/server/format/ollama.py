"""`/api/chat` and `/api/generate`, Ollama's API: what an answer looks like, whole and as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished
from drivetrain.core.results import FinishReason, Metrics, Result, Usage
from drivetrain.server.answer import answer
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.faces import ollama_error
from drivetrain.server.format.blocks import Block, BlockEvent, BlockKind, Blocks, Closed, Grown, blocks_of
from drivetrain.server.format.openai import chat_logprobs, compact, receipt_field, receipt_json
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.http.intake import read_request
from drivetrain.server.models import tagged
from drivetrain.server.parse.body import Values
from drivetrain.server.parse.ollama import (
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    is_unused,
    ollama_chat_request,
    ollama_generate_request,
)
from drivetrain.server.parse.translate import ParsedRequest

Fields = dict[str, Any]
Said = Callable[[Fields], Fields]
"""Where one of the two endpoints has what the model says: `content`, `thinking` and `tool_calls`."""


async def chat(exchange: Exchange, context: Context) -> Response | None:
    def make(values: Values) -> ParsedRequest | None:
        return ollama_chat_request(values, exchange.headers) if "messages" in values else None

    values, parsed = await read_request(exchange, context, OLLAMA_CHAT, make)
    if parsed is None:
        return await _moved(values, context, _in_message)
    await _answered(exchange, context, values, parsed, _in_message)
    return None


async def generate(exchange: Exchange, context: Context) -> Response | None:
    def make(values: Values) -> ParsedRequest | None:
        if values.keys().isdisjoint({"prompt", "suffix", "images"}):
            return None
        values.setdefault("prompt", "")
        return ollama_generate_request(values, exchange.headers)

    values, parsed = await read_request(exchange, context, OLLAMA_GENERATE, make)
    if parsed is None:
        return await _moved(values, context, _in_response)
    await _answered(exchange, context, values, parsed, _in_response)
    return None


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _in_message(said: Fields) -> Fields:
    return {"message": {"role": "assistant", "content": "", **said}}


def _in_response(said: Fields) -> Fields:
    said = dict(said)
    return {"response": said.pop("content", ""), **said}


async def _answered(exchange: Exchange, context: Context, values: Values, parsed: ParsedRequest, where: Said) -> None:
    made = partial(OllamaFormatter, {"model": values["model"], "created_at": now()}, where)
    await answer(exchange, context, tagged(context.models, values["model"]), parsed, made)


async def _moved(values: Values, context: Context, where: Said) -> Response:
    """Without a prompt, the model is loaded, or told to be in no use: it is unloaded when another needs the room."""
    name, done = tagged(context.models, values["model"]), "unload"
    if not is_unused(values):
        done = "load"
        async with context.models.lease(name, values.get("timeout_s")):
            pass
    head = {"model": values["model"], "created_at": now()}
    return json_response({**head, **where({}), "done": True, "done_reason": done}, headers=values.headers)


class OllamaFormatter:
    content_type = "application/x-ndjson"
    head_first = False

    def __init__(self, head: Mapping[str, str], where: Said, parsed: ParsedRequest) -> None:
        self._head = head
        self._where = where
        self._logprobs = parsed.logprobs
        self._blocks = Blocks()
        self._reason: FinishReason | None = None
        self._metrics = Metrics()
        self._receipt: Fields = {}

    def whole(self, results: Sequence[Result], usage: Usage) -> Fields:
        (result,) = results
        (choice,) = result.choices
        said: Fields = {}
        for block in blocks_of(choice):
            for name, value in _said(block).items():
                said[name] = said[name] + value if name in said else value
        logprobs = {"logprobs": chat_logprobs(choice.logprobs or ())["content"]} if self._logprobs else {}
        ended = _ended(choice.finish_reason, result.metrics, usage)
        return {**self._head, **self._where(said), **logprobs, **ended, **receipt_json(results)}

    # As lines

    def format(self, prompt: int, events: Sequence[Event]) -> bytes:
        return b"".join([self._of(event) for event in events])

    def end(self, usage: Usage) -> bytes:
        return self._line({}, **_ended(self._reason, self._metrics, usage), **self._receipt)

    def failure(self, error: DrivetrainError) -> bytes:
        return f"{compact(ollama_error(error))}\n".encode()

    def _of(self, event: Event) -> bytes:
        if type(event) is Delta:
            said = _told(self._blocks.take(event))
            if not self._logprobs or not event.logprobs:
                return b"".join([self._line(one, done=False) for one in said])
            logprobs = chat_logprobs(event.logprobs)["content"]
            first, *rest = said or [{}]
            lines = [self._line(one, done=False) for one in rest]
            return self._line(first, done=False, logprobs=logprobs) + b"".join(lines)
        if type(event) is ChoiceFinished:
            self._reason = event.reason
            return b"".join([self._line(one, done=False) for one in _told(self._blocks.end())])
        if type(event) is Finished:
            self._metrics, self._receipt = event.metrics, receipt_field(event)
        return b""

    def _line(self, said: Fields, **more: Any) -> bytes:
        return f"{compact({**self._head, **self._where(said), **more})}\n".encode()


def _told(events: Iterable[BlockEvent]) -> list[Fields]:
    """What each event says. A call is told once it is whole."""
    told = []
    for event in events:
        if isinstance(event, Grown) and event.block.kind is not BlockKind.CALL:
            told.append({_NAMES[event.block.kind]: event.text})
        elif isinstance(event, Closed) and event.block.kind is BlockKind.CALL:
            told.append(_said(event.block))
    return told


_NAMES = {BlockKind.TEXT: "content", BlockKind.REASONING: "thinking"}


def _said(block: Block) -> Fields:
    if block.kind is not BlockKind.CALL:
        return {_NAMES[block.kind]: block.text}
    return {"tool_calls": [{"id": block.call_id, "function": {"name": block.name, "arguments": block.arguments}}]}


def _ended(reason: FinishReason | None, metrics: Metrics, usage: Usage) -> Fields:
    """Times in nanoseconds: `load_duration` is how long the request waited for its turn."""
    first_s = metrics.total_s if metrics.first_token_s is None else metrics.first_token_s
    return {
        "done": True,
        "done_reason": "length" if reason is FinishReason.LENGTH else "stop",
        "total_duration": nanoseconds(metrics.total_s),
        "load_duration": nanoseconds(metrics.queue_s),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": nanoseconds(first_s - metrics.queue_s),
        "eval_count": usage.completion_tokens,
        "eval_duration": nanoseconds(metrics.total_s - first_s),
    }


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
