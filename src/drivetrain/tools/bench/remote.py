"""Any OpenAI-compatible server as a target: chat or completions, streamed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import DrivetrainError, InvalidSetting
from drivetrain.http.address import Address
from drivetrain.http.client import HttpAnswer, connected
from drivetrain.http.events import DONE, EventParser
from drivetrain.http.parser import Broken
from drivetrain.tools.bench.outcome import Failure, RequestOutcome
from drivetrain.tools.bench.target import TargetFacts

OPTIONAL = ("ignore_eos", "stream_options", "temperature")
"""Fields that a server may not know; the first is not part of OpenAI's API."""

OMITTABLE = (*OPTIONAL, "max_tokens", "model")
"""Every field but those without which nothing can be measured."""

KEY_ADVICE = "put its key in the environment (DRIVETRAIN_BENCH_API_KEY; see --help)"

CONNECT_TIMEOUT_S = 10.0
MAX_EVENT_BYTES = 2**20
MAX_BODY_BYTES = 2**24

_TEXTS = ("content", "reasoning_content", "reasoning")
_MAX_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server and how to ask it. `omit` names fields to leave out, `extra` adds some. The key is never shown."""

    address: Address
    model: str
    key: str = field(default="", repr=False)
    chat: bool = True
    omit: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    @property
    def headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return {"content-type": "application/json", "accept": "text/event-stream, application/json", **key}

    def body(self, prompt: str, max_tokens: int) -> bytes:
        content = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        fields: dict[str, Any] = {
            "model": self.model,
            **content,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        return json.dumps({name: value for name, value in fields.items() if name not in self.omit}).encode()

    def without_key(self, text: str) -> str:
        """A server's message on one line, cut short and without our key."""
        shown = " ".join((text.replace(self.key, "…") if self.key else text).split())
        return shown[:_MAX_MESSAGE_CHARS]


class Remote:
    def __init__(self, endpoint: Endpoint, *, label: str, facts: TargetFacts) -> None:
        self.label = label
        self.facts = facts
        self._endpoint = endpoint

    async def ask(self, prompt: str, max_tokens: int, due: float | None) -> RequestOutcome:
        reader = _AnswerReader(self._endpoint, time.perf_counter() if due is None else due)
        body = self._endpoint.body(prompt, max_tokens)
        try:
            async with connected(self._endpoint.address, timeout_s=CONNECT_TIMEOUT_S) as connection:
                if due is None:  # connecting does not count, since clients keep their connections
                    reader.started = time.perf_counter()
                path = self._endpoint.address.path + self._endpoint.path
                await reader.read(await connection.ask("POST", path, self._endpoint.headers, body))
        except Broken as exc:
            reader.failure = Failure("broken", str(exc))
        except OSError as exc:
            reader.failure = _no_connection(exc)
        return reader.outcome()

    def advice(self, failure: Failure) -> str:
        endpoint = self._endpoint
        if failure.kind in {"http 401", "http 403"}:
            return KEY_ADVICE
        if failure.kind == "http 404":
            return f"check that {endpoint.address} has {endpoint.path} and a model {endpoint.model!r}"
        sent = [name for name in OPTIONAL if name not in endpoint.omit]
        if failure.kind in {"http 400", "http 422"} and sent:
            named = [name for name in sent if name in failure.message]
            if named:
                return f"leave {named[0]} out with --omit {named[0]}"
            return f"if it does not know one of the fields, leave that one out, for example with --omit {sent[0]}"
        return ""


class _AnswerReader:
    """Reads one answer as it comes."""

    def __init__(self, endpoint: Endpoint, started: float) -> None:
        self.started = started
        self.failure: Failure | None = None
        self._endpoint = endpoint
        self._events: list[float] = []
        self._usage: Mapping[str, Any] | None = None
        self._ended = False

    async def read(self, answer: HttpAnswer) -> None:
        if answer.status != 200:
            self.failure = Failure(f"http {answer.status}", self._message(await answer.whole(MAX_BODY_BYTES)))
        elif not answer.is_stream:
            self.failure = Failure("broken", "the answer is not an event stream; does the server stream?")
        else:
            parser = EventParser(MAX_EVENT_BYTES)
            async for part in answer.parts():
                self._take(parser.feed(part))
            self._take(parser.end())
            if not self._ended and self.failure is None:
                self.failure = Failure("broken", "the stream ended without a last event")

    def outcome(self) -> RequestOutcome:
        usage = self._usage or {}
        return RequestOutcome(
            started=self.started,
            ended=time.perf_counter(),
            events=tuple(self._events),
            prompt_tokens=_count(usage, "prompt_tokens"),
            completion_tokens=_count(usage, "completion_tokens") or len(self._events),
            cached_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens") or 0,
            counted=_count(usage, "completion_tokens") is not None,
            failure=self.failure,
        )

    def _take(self, events: Iterable[tuple[bytes, bytes]]) -> None:
        for name, data in events:
            if name == b"data":
                self._event(data)

    def _event(self, data: bytes) -> None:
        now = time.perf_counter()
        if data == DONE:
            self._ended = True
            return
        try:
            event = json.loads(data)
            usage, choices = event.get("usage"), event.get("choices") or ()
            texts = [_has_text(choice) for choice in choices]
            self._ended |= any(choice.get("finish_reason") for choice in choices)
        except (ValueError, RecursionError, AttributeError, TypeError) as exc:
            raise Broken("an event of the stream does not follow OpenAI's API") from exc
        if event.get("error"):
            self.failure = Failure("stream error", self._message(data))
        if any(texts):
            self._events.append(now)
        if isinstance(usage, dict):
            self._usage = usage

    def _message(self, data: bytes) -> str:
        """The message in an error body, wherever it is."""
        text = data.decode("utf-8", "replace")
        found: Any = text
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and found.get(name):
                found = found[name]
        return self._endpoint.without_key(found if isinstance(found, str) else json.dumps(found))


async def find_model(address: Address, key: str) -> str:
    """The name of the one model that a server lists. Raises `InvalidSetting` if it does not list exactly one."""
    endpoint = Endpoint(address=address, model="", key=key)
    cards = (await get(endpoint, "/models")).get("data")
    listed = cards if isinstance(cards, list) else []
    names = [str(card["id"]) for card in listed if isinstance(card, dict) and "id" in card]
    if len(names) == 1:
        return names[0]
    listing = f"lists {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else "lists no model"
    raise InvalidSetting(f"{address} {listing}; name one with --model", param="model")


async def get(endpoint: Endpoint, path: str, timeout_s: float = 30.0) -> dict[str, Any]:
    """A JSON object from the server. Raises `DrivetrainError`, which says what to do."""
    where = f"{endpoint.address}{path}"
    try:
        async with asyncio.timeout(timeout_s), connected(endpoint.address, timeout_s=CONNECT_TIMEOUT_S) as connection:
            answer = await connection.ask("GET", endpoint.address.path + path, endpoint.headers)
            data = await answer.whole(MAX_BODY_BYTES)
    except (Broken, OSError) as exc:
        failure = _no_connection(exc) if isinstance(exc, OSError) else Failure("broken", str(exc))
        raise DrivetrainError(f"{where}: {failure.message}") from exc
    if answer.status != 200:
        refused = answer.status in {401, 403}
        hint = KEY_ADVICE if refused else "check the path, and name the model with --model"
        raise DrivetrainError(f"{where} answers {answer.status}; {hint}")
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
    if not isinstance(found, dict):
        raise DrivetrainError(
            f"{where} does not return a JSON object; check that it is an OpenAI API, and name the model with --model"
        )
    return found


def optional_fields(names: Collection[str]) -> frozenset[str]:
    """Fields to leave out. Raises `InvalidSetting` for any that is not `OMITTABLE`."""
    for name in names:
        if name in {"stream", "messages", "prompt"}:
            raise InvalidSetting(f"{name} cannot be left out: without it there is nothing to measure", param="omit")
        if name not in OMITTABLE:
            known = ", ".join(OMITTABLE)
            raise InvalidSetting(f"there is no field {name!r} to leave out; choose from {known}", param="omit")
    return frozenset(names)


def _no_connection(exc: OSError) -> Failure:
    if isinstance(exc, TimeoutError):
        return Failure("connection", "the connection was not accepted in time")
    plain = isinstance(exc, ConnectionError) and exc.errno is not None  # asyncio's own message repeats the address
    reason = os.strerror(exc.errno or 0) if plain else exc.strerror or str(exc)
    return Failure("connection", reason or type(exc).__name__)


def _has_text(choice: Any) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(name) for name in _TEXTS)


def _count(found: Any, name: str) -> int | None:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) else None
