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
from drivetrain.tools.bench.outcome import Failure, Outcome
from drivetrain.tools.bench.target import Facts

OPTIONAL = ("ignore_eos", "stream_options", "temperature")
"""Fields that a server may not know; the first is no part of OpenAI's API."""

CONNECT_TIMEOUT_S = 10.0
MAX_EVENT_BYTES = 2**20
MAX_BODY_BYTES = 2**24

_TEXTS = ("content", "reasoning_content", "reasoning")
_MAX_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a server is asked. `omit` names fields to leave out, `extra` adds some. The key is shown to nobody else."""

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
        """Somebody else's message in one line, cut, and without our key should it be in it."""
        shown = " ".join((text.replace(self.key, "…") if self.key else text).split())
        return shown[:_MAX_MESSAGE_CHARS]


class Remote:
    def __init__(self, asking: Asking, *, label: str, facts: Facts) -> None:
        self.label = label
        self.facts = facts
        self._asking = asking

    async def ask(self, prompt: str, max_tokens: int, due: float | None) -> Outcome:
        reading = _Reading(self._asking, time.perf_counter() if due is None else due)
        body = self._asking.body(prompt, max_tokens)
        try:
            async with connected(self._asking.address, timeout_s=CONNECT_TIMEOUT_S) as connection:
                if due is None:  # what connecting takes is no part of it: clients keep their connections
                    reading.started = time.perf_counter()
                path = self._asking.address.path + self._asking.path
                await reading.read(await connection.ask("POST", path, self._asking.headers, body))
        except Broken as exc:
            reading.failure = Failure("broken", str(exc))
        except OSError as exc:
            reading.failure = _no_connection(exc)
        return reading.outcome()

    def advice(self, failure: Failure) -> str:
        asking = self._asking
        if failure.kind in {"http 401", "http 403"}:
            return "give its key in the environment (DRIVETRAIN_BENCH_API_KEY; see --help)"
        if failure.kind == "http 404":
            return f"is {asking.address} the path, is there a model {asking.model!r}, does it have {asking.path}?"
        sent = [name for name in OPTIONAL if name not in asking.omit]
        if failure.kind in {"http 400", "http 422"} and sent:
            named = [name for name in sent if name in failure.message]
            if named:
                return f"leave {named[0]} out with --omit {named[0]}"
            return f"if it does not know one of the fields, leave that one out, such as with --omit {sent[0]}"
        return ""


class _Reading:
    """One answer while it comes."""

    def __init__(self, asking: Asking, started: float) -> None:
        self.started = started
        self.failure: Failure | None = None
        self._asking = asking
        self._events: list[float] = []
        self._usage: Mapping[str, Any] | None = None
        self._ended = False

    async def read(self, answer: HttpAnswer) -> None:
        if answer.status != 200:
            self.failure = Failure(f"http {answer.status}", self._message(await answer.whole(MAX_BODY_BYTES)))
        elif not answer.is_stream:
            self.failure = Failure("broken", "the answer is no event stream; does the server stream?")
        else:
            parser = EventParser(MAX_EVENT_BYTES)
            async for part in answer.parts():
                self._take(parser.feed(part))
            self._take(parser.end())
            if not self._ended and self.failure is None:
                self.failure = Failure("broken", "the stream ended without a last event")

    def outcome(self) -> Outcome:
        usage = self._usage or {}
        return Outcome(
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
        except (ValueError, AttributeError, TypeError) as exc:
            raise Broken("an event of the stream is not what OpenAI's API says") from exc
        if event.get("error"):
            self.failure = Failure("stream error", self._message(data))
        if any(texts):
            self._events.append(now)
        if isinstance(usage, dict):
            self._usage = usage

    def _message(self, data: bytes) -> str:
        """What an error body says, wherever it says it."""
        text = data.decode("utf-8", "replace")
        found: Any = text
        with contextlib.suppress(ValueError):
            found = json.loads(text)
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and found.get(name):
                found = found[name]
        return self._asking.without_key(found if isinstance(found, str) else json.dumps(found))


async def find_model(address: Address, key: str) -> str:
    """The name of the one model that a server lists. Raises `InvalidSetting` where it is not one."""
    asking = Asking(address=address, model="", key=key)
    cards = (await get(asking, "/models")).get("data")
    listed = cards if isinstance(cards, list) else []
    names = [str(card["id"]) for card in listed if isinstance(card, dict) and "id" in card]
    if len(names) == 1:
        return names[0]
    said = f"lists {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else "lists no model"
    raise InvalidSetting(f"{address} {said}; name one with --model", param="model")


async def get(asking: Asking, path: str, timeout_s: float = 30.0) -> dict[str, Any]:
    """A JSON object. Raises `DrivetrainError` with what to do about it."""
    where = f"{asking.address}{path}"
    try:
        async with asyncio.timeout(timeout_s), connected(asking.address, timeout_s=CONNECT_TIMEOUT_S) as connection:
            answer = await connection.ask("GET", asking.address.path + path, asking.headers)
            data = await answer.whole(MAX_BODY_BYTES)
    except (Broken, OSError) as exc:
        failure = _no_connection(exc) if isinstance(exc, OSError) else Failure("broken", str(exc))
        raise DrivetrainError(f"{where}: {failure.message}") from exc
    if answer.status != 200:
        failure = Failure(f"http {answer.status}", "")
        advice = Remote(asking, label="", facts=Facts(kind="url", model="")).advice(failure)
        hint = advice if answer.status in {401, 403} else "is the path right? name the model with --model"
        raise DrivetrainError(f"{where} answers {answer.status}; {hint}")
    found: Any = None
    with contextlib.suppress(ValueError):
        found = json.loads(data)
    if not isinstance(found, dict):
        raise DrivetrainError(f"{where} gives no JSON object; is it the API of OpenAI? name the model with --model")
    return found


def optional_fields(names: Collection[str]) -> frozenset[str]:
    """Fields to leave out. Raises `InvalidSetting` for those without which nothing can be measured."""
    for name in names:
        if name in {"stream", "messages", "prompt"}:
            raise InvalidSetting(f"{name} cannot be left out: without it there is nothing to measure", param="omit")
    return frozenset(names)


def _no_connection(exc: OSError) -> Failure:
    if isinstance(exc, TimeoutError):
        return Failure("connection", "nobody takes the connection in time")
    plain = isinstance(exc, ConnectionError) and exc.errno is not None  # asyncio's own words repeat the address
    reason = os.strerror(exc.errno or 0) if plain else exc.strerror or str(exc)
    return Failure("connection", reason or type(exc).__name__)


def _has_text(choice: Any) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(name) for name in _TEXTS)


def _count(found: Any, name: str) -> int | None:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) else None
