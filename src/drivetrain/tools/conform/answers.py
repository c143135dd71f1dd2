"""Whole answers and streams of both text endpoints, read into one form so that they can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.http.events import is_event_stream
from drivetrain.tools.conform.calls import ParsedCall, join_pieces, reasoning_of, whole_calls
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import brief, take
from drivetrain.tools.conform.verdict import Failed, ensure

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Api:
    """A text endpoint. `text` and `piece` are the paths of a choice's text, in a whole answer and in an event."""

    name: str
    path: str
    object: str
    chunk: str
    text: str
    piece: str

    def prompt_fields(self, prompt: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": prompt}]} if self is CHAT else {"prompt": prompt}


CHAT = Api("chat", "/chat/completions", "chat.completion", "chat.completion.chunk", "message.content", "delta.content")
COMPLETIONS = Api("completions", "/completions", "text_completion", "text_completion", "text", "text")


@dataclass(frozen=True, slots=True)
class ParsedUsage:
    """`reasoning` and `cached` are None if the server does not count them. What is cached differs from time to time."""

    prompt: int
    completion: int
    total: int
    reasoning: int | None = None
    cached: int | None = field(default=None, compare=False)


@dataclass(slots=True)
class ParsedChoice:
    """A stream's `logprobs` are joined. `extra` holds fields that only some servers send, such as `token_ids`."""

    index: int
    text: str = ""
    reason: str | None = None
    logprobs: dict[str, Any] | None = None
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ParsedAnswer:
    """Choices are ordered by index. For a stream, `chunks` are its events and `done` says whether `[DONE]` came."""

    document: Mapping[str, Any]
    choices: list[ParsedChoice]
    usage: ParsedUsage | None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def first(self) -> ParsedChoice:
        return self.choices[0]

    @property
    def text(self) -> str:
        return self.first.text

    @property
    def counted(self) -> ParsedUsage:
        """The usage. Raises `Failed` if there is none."""
        if self.usage is None:
            raise Failed("the answer has no usage")
        return self.usage


def read_whole(api: Api, exchange: RecordedExchange) -> ParsedAnswer:
    document = exchange.json()
    choices = [_whole_choice(api, choice) for choice in take(document, "choices", list)]
    ensure(choices, "choices is empty")
    return ParsedAnswer(document, sorted(choices, key=lambda choice: choice.index), read_usage(document))


def read_usage(document: Any) -> ParsedUsage | None:
    if not isinstance(document, dict) or document.get("usage") is None:
        return None
    usage = take(document, "usage", dict)
    prompt, total = take(usage, "prompt_tokens", int), take(usage, "total_tokens", int)
    completion = take(usage, "completion_tokens", int) if "completion_tokens" in usage else 0
    return ParsedUsage(
        prompt,
        completion,
        total,
        reasoning=_detail(usage.get("completion_tokens_details"), "reasoning_tokens"),
        cached=_detail(usage.get("prompt_tokens_details"), "cached_tokens"),
    )


def _detail(details: Any, name: str) -> int | None:
    counts = isinstance(details, dict) and details.get(name) is not None
    return take(details, name, int) if counts else None


def _whole_choice(api: Api, document: Any) -> ParsedChoice:
    choice = ParsedChoice(take(document, "index", int))
    choice.text = _text_at(document, api.text)
    if api is CHAT:
        message = take(document, "message", dict)
        choice.reasoning, choice.calls = reasoning_of(message), whole_calls(message)
    _take_rest(choice, document)
    return choice


def _text_at(document: Any, path: str) -> str:
    """A message that only reasons or calls tools has null as its content."""
    outer, _, last = path.rpartition(".")
    holder = take(document, outer, dict) if outer else document
    found = holder.get(last) if isinstance(holder, dict) else None
    if found is not None and not isinstance(found, str):
        raise Failed(f"{path} is {brief(found)}; it must be a string")
    return found or ""


def _take_rest(choice: ParsedChoice, document: dict[str, Any]) -> None:
    reason, logprobs = document.get("finish_reason"), document.get("logprobs")
    if reason is not None:
        choice.reason = take(document, "finish_reason", str)
    if logprobs is not None:
        choice.logprobs = _joined(choice.logprobs, take(document, "logprobs", dict))
    for name in ("token_ids", "prompt_token_ids"):
        if isinstance(document.get(name), list):
            choice.extra[name] = choice.extra.get(name, []) + document[name]


def _joined(before: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    lists = {name: value for name, value in new.items() if isinstance(value, list)}
    return {name: [*((before or {}).get(name) or []), *value] for name, value in lists.items()}


# Streams


def read_stream(api: Api, exchange: RecordedExchange) -> ParsedAnswer:
    """Raises `Failed` for an error event, and if this is not a stream."""
    events = read_events(exchange)
    done = bool(events) and events[-1] == DONE
    chunks = [_chunk(data) for data in events if data != DONE]
    ensure(chunks, "the stream has no events")
    answer = ParsedAnswer(chunks[0], [], None, chunks, done)
    choices: dict[int, ParsedChoice] = {}
    calls: dict[int, dict[int, ParsedCall]] = {}
    for chunk in chunks:
        answer.usage = read_usage(chunk) or answer.usage
        for document in take(chunk, "choices", list):
            choice = choices.setdefault(take(document, "index", int), ParsedChoice(document["index"]))
            choice.text += _text_at(document, api.piece)
            if api is CHAT:
                delta = take(document, "delta", dict)
                choice.reasoning += reasoning_of(delta)
                join_pieces(calls.setdefault(choice.index, {}), delta)
            _take_rest(choice, document)
    ensure(choices, "no event of the stream has a choice")
    for index, found in calls.items():
        choices[index].calls = [found[place] for place in sorted(found)]
    answer.choices = [choices[index] for index in sorted(choices)]
    return answer


def read_events(exchange: RecordedExchange) -> list[str]:
    """The data of each event. Comments and blank lines are skipped."""
    kind = exchange.reply_headers.get("content-type", "")
    ensure(is_event_stream(kind), f"a stream has the content type {kind!r}, not text/event-stream")
    events: list[str] = []
    lines: list[str] = []
    for raw in [*exchange.reply.split(b"\n"), b""]:
        line = _line(raw)
        if line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        elif line.startswith(":") or line.partition(":")[0] in {"event", "id", "retry"}:
            continue
        elif line:
            raise Failed(f"a line of the stream is not an event: {brief(line)}")
        elif lines:
            events.append("\n".join(lines))
            lines = []
    return events


def _line(raw: bytes) -> str:
    try:
        return raw.rstrip(b"\r").decode()
    except UnicodeDecodeError:
        raise Failed("the stream is not UTF-8: a character is cut in two") from None


def _chunk(data: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise Failed(f"an event of the stream is not JSON: {brief(data)}") from None
    if not isinstance(document, dict):
        raise Failed(f"an event of the stream is not an object: {brief(data)}")
    if document.get("error") is not None:
        raise Failed(f"an error came in the stream: {brief(document['error'], 200)}")
    return document


def read_named(exchange: RecordedExchange) -> list[dict[str, Any]]:
    """The events of an API that gives each a `type`."""
    events = [_chunk(data) for data in read_events(exchange) if data != DONE]
    for event in events:
        take(event, "type", str)
    ensure(events, "the stream has no events")
    return events


def pieces(api: Api, answer: ParsedAnswer, index: int = 0) -> list[str]:
    """The text of each event of one choice, in order."""
    return [
        _text_at(choice, api.piece)
        for chunk in answer.chunks
        for choice in take(chunk, "choices", list)
        if take(choice, "index", int) == index
    ]
