"""Upstreams whose answers a test writes by hand, and a worker in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import probe
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.engine import UPSTREAM, RemoteEngine
from drivetrain.engines.remote.wire import Timeouts
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

SECRET = "sk-very-secret"
QUICK = Timeouts(connect_s=2.0, ask_s=2.0, first_s=2.0, idle_s=0.5)
PATIENT = Timeouts(connect_s=10.0, ask_s=60.0, first_s=90.0, idle_s=90.0)

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Scripted:
    """Answers a trial of one token well, and then what `answers` says, the last one again and again."""

    answers: list[Answer] = field(default_factory=list)
    models: Any = field(default_factory=lambda: {"object": "list", "data": [{"id": "m", "owned_by": "them"}]})
    refuse_trial: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda body: None
    asked: list[Asked] = field(default_factory=list)
    left: int = 0
    """Clients that went away before their answer was over."""
    url: str = ""

    @property
    def generations(self) -> list[Asked]:
        """Those that are no trial."""
        return [asked for asked in self.asked if asked.method == "POST" and not _is_trial(asked.body)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            asked = await _read(reader)
            self.asked.append(asked)
            answering = asyncio.create_task(self._answer(asked, writer))
            leaving = asyncio.create_task(reader.read())
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left += 1
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
        writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "GET":
            await body(json.dumps(self.models))(writer)
        elif _is_trial(asked.body):
            refusal = self.refuse_trial(asked.body)
            await (stream(says("x"), ends(), usage(1, 1)) if refusal is None else error(400, **refusal))(writer)
        else:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await answer(writer)


def _is_trial(asked: dict[str, Any]) -> bool:
    return asked.get("messages") == [{"role": "user", "content": "Hi"}]


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = head[0].split(" ")
    return Asked(method, path, headers, json.loads(data) if data else None)


def raw(data: bytes, *, hang: bool = False, cut: bool = False) -> Answer:
    """These bytes; then nothing more for ever, or a reset, or an end."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if hang:
            await asyncio.sleep(60)
        if cut:
            await asyncio.sleep(0.05)
            writer.transport.abort()

    return answer


def head(status: int = 200, kind: str = "text/event-stream", **more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"content-type: {kind}", *(f"{k.replace('_', '-')}: {v}" for k, v in more.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def body(text: str, status: int = 200, kind: str = "application/json", **more: str) -> Answer:
    return raw(head(status, kind, **more, content_length=str(len(text.encode()))) + text.encode())


def error(status: int, message: str = "no", **more: Any) -> Answer:
    """`retry_after` is a header, all else stands in the body."""
    headers = {"retry_after": str(more.pop("retry_after"))} if "retry_after" in more else {}
    return body(json.dumps({"error": {"message": message, **more}}), status, **headers)


def stream(*events: str, done: bool = True, **ending: bool) -> Answer:
    return raw(head() + "".join(f"data: {e}\n\n" for e in [*events, *(["[DONE]"] if done else [])]).encode(), **ending)


def says(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def ends(reason: str = "stop") -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage(prompt: int, answer: int, **more: Any) -> str:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": answer, **more}})


@asynccontextmanager
async def scripted(*answers: Answer, **more: Any) -> AsyncIterator[Scripted]:
    made = Scripted(list(answers), **more)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def worker_at(
    *urls: str,
    model: str = "m",
    timeouts: Timeouts | None = QUICK,
    options: Sequence[tuple[str, Any]] = (),
    tracer: GenAiTracer | None = None,
    **settings: Any,
) -> AsyncIterator[EngineWorker]:
    reference = f"{','.join(urls)}#{model}"
    spec = ModelSpec(name="far", path=Path(), format=WeightsFormat.NONE, options={UPSTREAM: reference, **dict(options)})
    worker = EngineWorker(RemoteEngine(key=Key(SECRET), timeouts=timeouts), spec, Settings(**settings), tracer=tracer)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def engine_of(worker: EngineWorker) -> RemoteEngine:
    engine = probe.engine_of(worker)
    assert isinstance(engine, RemoteEngine)
    return engine
