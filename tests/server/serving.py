"""A real server on a loopback port, in a thread of its own with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import openai

from contract.filling import FillingBytes
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.server.app import Route, create_app
from drivetrain.server.run import HttpServer, Stop, bind, serve
from drivetrain.server.settings import ServerSettings
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

T = TypeVar("T")
OpenWorker = Callable[[], contextlib.AbstractAsyncContextManager[EngineWorker]]


class Served:
    """`client` is the official one, without retries: every refusal is seen."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self.key = key
        self.client = openai.OpenAI(base_url=f"{self.base}/v1", api_key=key or "none", max_retries=0, timeout=60)
        self.loop: asyncio.AbstractEventLoop
        self.worker: EngineWorker
        self.stop: Stop
        self.model: str

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def tasks(self) -> list[str]:
        """What runs on the server's loop, by the names of the coroutines."""

        async def names() -> list[str]:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            return sorted(getattr(task.get_coro(), "__qualname__", "") for task in others)

        return self.on_loop(names())

    def settle(self, seconds: float = 10.0) -> None:
        """Wait until nothing runs and nothing waits."""
        end = time.monotonic() + seconds
        while self.worker.status.running or self.worker.status.waiting:
            assert time.monotonic() < end, self.worker.status
            time.sleep(0.01)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body, with nothing between the test and the wire that mends a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        status, _, data = self.request("POST", path, body, headers)
        return status, json.loads(data)

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of a request that must be refused with `status`."""
        got, document = self.post(path, body)
        assert got == status, (got, document)
        error: dict[str, Any] = document["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(json.dumps(document).encode()) < 4096
        return error

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of each server-sent event, parsed; `[DONE]` as it is."""
        status, headers, data = self.request("POST", path, {**body, "stream": True})
        assert status == 200, data
        assert headers["content-type"].startswith("text/event-stream")
        blocks = data.decode().split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") for block in blocks)
        texts = [block.removeprefix("data: ") for block in blocks]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    def raw(self, timeout_s: float = 20.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def works(self) -> None:
        """A normal request is answered. It leaves no connection: the server might close it as the next begins."""
        answer = self.client.completions.create(
            model=self.model,
            prompt="Hello",
            max_tokens=2,
            extra_body={"ignore_eos": True},
            extra_headers={"Connection": "close"},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2


@contextlib.contextmanager
def serving(
    open_worker: OpenWorker, tracer: GenAiTracer | None = None, more_routes: Sequence[Route] = (), **settings: Any
) -> Iterator[Served]:
    made = ServerSettings(port=0, **settings)
    sock = bind(made)
    served = Served(sock.getsockname()[1], made.api_keys[0] if made.api_keys else "")
    up = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        served.loop = asyncio.get_running_loop()
        served.stop = Stop()
        async with open_worker() as worker:
            served.worker, served.model = worker, worker.metadata.name
            models = Fleet.of({worker.metadata.name: worker})

            async def started() -> None:
                return None

            await serve(
                create_app(models, made, tracer, more_routes),
                made,
                sock,
                start=started,
                drain=lambda: models.drain(2.0),
                stop=served.stop,
                ready=up.set,
            )

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as exc:
            failed.append(exc)
            raise
        finally:
            up.set()

    thread = threading.Thread(target=run, name="test-server", daemon=True)
    thread.start()
    assert up.wait(120)
    if failed:
        raise failed[0]
    try:
        yield served
    finally:
        served.client.close()
        served.stop.request()
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def says(text: str, **script: Any) -> Iterator[Served]:
    """A server whose model says this."""
    with serving(fake(text=text, **script)) as served:
        yield served


def fake(settings: dict[str, Any] | None = None, /, tracer: GenAiTracer | None = None, **script: Any) -> OpenWorker:
    """A worker on the fake engine with this script."""
    return open_fake(FakeEngine(Script(**script)), settings, tracer)


class ThoughtfulTokenizer(ByteTokenizer):
    """Its chat template knows reasoning."""

    chat_template = f"{ByteTokenizer.chat_template}{{% set marker = '<think>' %}}"


def thoughtful(**script: Any) -> OpenWorker:
    """A worker whose model reasons between `<think>` and `</think>`."""
    return open_fake(FakeEngine(Script(**script), tokenizer=ThoughtfulTokenizer()))


def filling(**script: Any) -> OpenWorker:
    """A worker whose model fills in the middle."""
    return open_fake(FakeEngine(Script(**script), tokenizer=FillingBytes()))


def open_fake(
    engine: FakeEngine, settings: dict[str, Any] | None = None, tracer: GenAiTracer | None = None
) -> OpenWorker:
    """A worker on this engine, which is opened once."""

    @contextlib.asynccontextmanager
    async def open_worker() -> Any:
        spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
        worker = EngineWorker(engine, spec, Settings(**(settings or {})), tracer=tracer)
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop()

    return open_worker


__all__ = ["HttpServer", "OpenWorker", "Served", "fake", "open_fake", "says", "serving", "thoughtful"]
