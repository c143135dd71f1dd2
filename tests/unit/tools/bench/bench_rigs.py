"""Targets with a script, workers on the fake engine, and servers that answer in every wrong way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivetrain.assembly import Worker
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.fake import scripted
from drivetrain.http.address import Address
from drivetrain.tools.bench.outcome import Failure, RequestOutcome, Round
from drivetrain.tools.bench.remote import Endpoint, Remote
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.workload import Closed, Level, Workload
from drivetrain.worker.settings import Settings

CERTIFICATE = Path(__file__).parent / "localhost.pem"


def workload(**changes: Any) -> Workload:
    values = {"prompt_tokens": 20, "max_tokens": 4, "shared_prefix": 0, "seed": 1, "rounds": 2, "timeout_s": 20.0}
    return Workload(**{**values, **changes})


def outcome(
    started: float = 0.0, events: Sequence[float] = (), tokens: int | None = None, **more: Any
) -> RequestOutcome:
    values = {
        "ended": events[-1] if events else started,
        "completion_tokens": len(events) if tokens is None else tokens,
        "prompt_tokens": 20,
    }
    return RequestOutcome(started=started, events=tuple(events), **{**values, **more})


def failed(kind: str = "overloaded", message: str = "no room") -> RequestOutcome:
    return RequestOutcome(started=0.0, ended=0.1, failure=Failure(kind, message))


def played(*outcomes: RequestOutcome, level: Level | None = None, wall_s: float = 1.0, complete: bool = True) -> Round:
    return Round(level=level or Closed(len(outcomes)), started=0.0, ended=wall_s, outcomes=outcomes, complete=complete)


@dataclass
class ScriptedTarget:
    """Answers at once as `answer` says, and writes down in `log` who was asked for what."""

    label: str
    log: list[tuple[str, str, int]] = field(default_factory=list)
    answer: Callable[[str, int], Awaitable[RequestOutcome]] | None = None
    facts: TargetFacts = field(default_factory=lambda: TargetFacts(kind="scripted", model="none"))

    async def ask(self, prompt: str, max_tokens: int, due: float | None) -> RequestOutcome:
        self.log.append((self.label, prompt, max_tokens))
        if self.answer is not None:
            return await self.answer(prompt, max_tokens)
        return outcome(0.0, [0.1 * (i + 1) for i in range(max_tokens)], prompt_tokens=len(prompt.split()) + 3)

    def advice(self, failure: Failure) -> str:
        return "ask another one"


@contextlib.asynccontextmanager
async def fake_worker(settings: dict[str, Any] | None = None, /, **script: Any) -> AsyncIterator[Worker]:
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    async with Worker(scripted(**{"repeat": True, **script}), spec, Settings(**(settings or {}))) as worker:
        assert isinstance(worker, Worker)
        yield worker


# Servers


@dataclass
class Asked:
    """What a server was asked: the request line, the headers and the body."""

    line: str
    headers: dict[str, str]
    body: Any


Answering = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    url: str
    asked: list[Asked]

    def remote(self, **changes: Any) -> Remote:
        asking = Endpoint(**{"address": Address.parse(self.url), "model": "m", **changes})
        return Remote(asking, label="server", facts=TargetFacts(kind="over HTTP", model="m"))


@contextlib.asynccontextmanager
async def raw_server(answer: Answering, *, tls: bool = False) -> AsyncIterator[RawServer]:
    """Every connection is answered by `answer`, byte by byte as it likes, and then closed."""
    asked: list[Asked] = []
    running: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked.append(Asked(head[0], headers, json.loads(body) if body else None))
            await answer(asked[-1], writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a client that leaves is part of the tests
        finally:
            running.discard(task)
            writer.close()

    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield RawServer(f"http{'s' if tls else ''}://127.0.0.1:{port}/v1", asked)
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def whole(data: bytes, status: str = "200 OK", kind: str = "application/json") -> Answering:
    """An answer with its length."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode())
        writer.write(data)
        await writer.drain()

    return answer


def raw(data: bytes) -> Answering:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


def chunked(*parts: bytes, pause_s: float = 0.0) -> Answering:
    """An event stream in chunks, cut where the parts are cut."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for part in parts:
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return answer


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def text_event(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


def usage_event(completion_tokens: int, prompt_tokens: int = 7, cached: int = 0) -> bytes:
    details = {"cached_tokens": cached}
    tokens = {"completion_tokens": completion_tokens, "prompt_tokens": prompt_tokens, "prompt_tokens_details": details}
    return event(choices=[], usage=tokens)
