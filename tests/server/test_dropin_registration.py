"""Telling controllers: a server of ours stands for them, and what it heard is compared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.http.address import Address
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.server.dropin import controllers
from drivetrain.server.dropin.controllers import Away, Controller, DbGptController, FastChatController
from drivetrain.server.dropin.registration import Registration
from server.serving import fake

HERE = "http://127.0.0.1:9"


class Heard:
    """A controller that knows workers as FastChat's does."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, Any]] = []
        self.known = False
        self.status = 200

    def answer(self, method: str, path: str, body: Any) -> Any:
        self.said.append((method, path, body))
        if path == "/register_worker":
            self.known = True
        return {"exist": self.known} if path == "/receive_heart_beat" else None

    def count(self, path: str) -> int:
        return sum(said[1] == path for said in self.said)


@contextlib.contextmanager
def controller(heard: Heard, port: int = 0) -> Iterator[Address]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = json.dumps(heard.answer(self.command, self.path, json.loads(body) if body else None)).encode()
            self.send_response(heard.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_DELETE = do_POST  # noqa: N815 - the library's name

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address.parse(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


@contextlib.asynccontextmanager
async def attended(make: Callable[[Fleet], Controller]) -> AsyncIterator[tuple[Fleet, Callable[[], Any]]]:
    """A fleet whose controller is told of it every hundredth of a second; and its drain."""
    async with fake()() as worker:
        fleet = Fleet.of({"fake": worker})

        async def start() -> None: ...

        async with Registration([make(fleet)], fleet, beat_s=0.01, away_s=0.01) as registration:
            await registration.after(start)()
            yield fleet, registration.before(lambda: fleet.drain(1.0))


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_fastchat_is_told_once_and_then_reminded() -> None:
    heard = Heard()
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)) as (_, drain):
            await until(lambda: heard.count("/receive_heart_beat") >= 3)
            assert heard.said[0] == (
                "POST",
                "/register_worker",
                {
                    "worker_name": HERE,
                    "check_heart_beat": True,
                    "worker_status": {"model_names": ["fake"], "speed": 1, "queue_length": 0},
                    "multimodal": False,
                },
            )
            assert heard.said[1] == ("POST", "/receive_heart_beat", {"worker_name": HERE, "queue_length": 0})
            assert heard.count("/register_worker") == 1
            await drain()
    assert heard.said[-1][1] == "/refresh_all_workers"
    assert heard.count("/refresh_all_workers") == 1


async def test_a_controller_that_forgot_it_is_told_again() -> None:
    heard = Heard()
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)):
            await until(lambda: heard.known)
            heard.known = False
            await until(lambda: heard.count("/register_worker") == 2)


async def test_a_controller_that_is_away_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with controller(heard) as address:
        port = address.port
    async with attended(lambda fleet: FastChatController(address, HERE, fleet)) as (fleet, drain):
        await until(lambda: "is unavailable" in caplog.text)
        assert fleet.ready
        with controller(heard, port):
            await until(lambda: heard.count("/receive_heart_beat") >= 1)
        await until(lambda: caplog.text.count("is unavailable") == 2)
        with controller(heard, port):
            before = heard.count("/receive_heart_beat")
            await until(lambda: heard.count("/receive_heart_beat") > before)
        await drain()


async def test_a_controller_that_answers_with_an_error_is_away(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    heard.status = 500
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)):
            await until(lambda: "status 500" in caplog.text)
            heard.status = 200
            await until(lambda: heard.count("/receive_heart_beat") >= 1)


async def test_nothing_is_said_once_it_drains() -> None:
    heard = Heard()
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)) as (_, drain):
            await until(lambda: heard.known)
            await drain()
            said = len(heard.said)
            await asyncio.sleep(0.1)
            assert len(heard.said) == said


async def test_nothing_is_said_while_the_models_are_not_ready() -> None:
    heard = Heard()
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)) as (fleet, _):
            await until(lambda: heard.known)
            for _, worker in fleet:
                await worker.drain()
            await asyncio.sleep(0.05)
            said = len(heard.said)
            await asyncio.sleep(0.1)
            assert len(heard.said) == said


async def test_dbgpt_hears_of_texts_and_embeddings_apart() -> None:
    heard = Heard()
    with controller(heard) as address:
        worker = Address.parse("http://10.0.0.7:8001")
        async with attended(lambda fleet: DbGptController(address, worker, fleet)) as (_, drain):
            await until(lambda: len(heard.said) >= 4)
            names = [{"model_name": f"fake@{kind}", "host": "10.0.0.7", "port": 8001} for kind in ("llm", "text2vec")]
            assert heard.said[:2] == [("POST", "/api/controller/heartbeat", name) for name in names]
            await drain()
    ends = [f"/api/controller/models?model_name=fake%40{kind}&host=10.0.0.7&port=8001" for kind in ("llm", "text2vec")]
    assert sorted(heard.said[-2:], key=repr) == [("DELETE", end, None) for end in ends]
    assert heard.count(ends[0]) == heard.count(ends[1]) == 1


class OneModel:
    """A fleet of a model that can be evicted, as far as a controller looks at it."""

    def __init__(self, **can: bool) -> None:
        self.name, self.aliases = "bge", ("b",)
        self.loaded = SimpleNamespace(capabilities=SimpleNamespace(**can))
        self.worker: Any = None
        self.members = [self]


def names(heard: Heard, method: str) -> list[str]:
    """What was said since the last look of the models of the one method, in a fixed order."""
    said = [body["model_name"] if body else path for said, path, body in heard.said if said == method]
    return sorted(name.partition("model_name=")[2].partition("&")[0].replace("%40", "@") or name for name in said)


async def test_dbgpt_keeps_an_embedding_model_that_is_evicted() -> None:
    heard, fleet = Heard(), OneModel(generation=False, embeddings=True)
    with controller(heard) as address:
        told = DbGptController(address, Address.parse("http://10.0.0.7:8001"), fleet)  # type: ignore[arg-type] # enough
        await told.here()
        assert (names(heard, "POST"), names(heard, "DELETE")) == (["b@llm", "bge@llm"], [])
        heard.said.clear()
        fleet.worker = fleet.loaded
        await told.here()
        assert (names(heard, "POST"), names(heard, "DELETE")) == (["b@text2vec", "bge@text2vec"], ["b@llm", "bge@llm"])
        heard.said.clear()
        fleet.worker = None
        await told.here()
        assert (names(heard, "POST"), names(heard, "DELETE")) == (["b@text2vec", "bge@text2vec"], [])
        heard.said.clear()
        await told.gone()
        assert names(heard, "DELETE") == ["b@text2vec", "bge@text2vec"]


async def test_every_model_is_tried_at_the_end() -> None:
    heard, fleet = Heard(), OneModel(generation=True, embeddings=True)
    fleet.worker = fleet.loaded
    with controller(heard) as address:
        told = DbGptController(address, Address.parse("http://10.0.0.7:8001"), fleet)  # type: ignore[arg-type] # enough
        await told.here()
        heard.status = 500
        with pytest.raises(Away):
            await told.gone()
    assert len(names(heard, "DELETE")) == 4


@contextlib.contextmanager
def trickling(every_s: float) -> Iterator[Address]:
    """It answers, one byte after the other, for about half a minute."""
    ended = threading.Event()

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.is_set():
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    for byte in b"HTTP/1.1 200 OK\r\nx: " + b"x" * int(30 / every_s):
                        connection.sendall(bytes([byte]))
                        if ended.wait(every_s):
                            break

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield Address.parse(f"http://127.0.0.1:{server.getsockname()[1]}")
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_a_controller_that_trickles_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is within the time; the whole answer is not."""
    monkeypatch.setattr(controllers, "ASK_TIMEOUT_S", 0.5)
    with trickling(0.05) as address:
        began = time.monotonic()
        with pytest.raises(Away, match="TimeoutError"):
            await controllers.ask(address, "POST", "/x", {})
        assert time.monotonic() - began < 10


class Leaving:
    """A controller that is well, then away, and that breaks at the end."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.address = Address.parse(HERE)
        self.failure = failure
        self.away = False
        self.num_here = self.num_gone = 0

    async def here(self) -> None:
        self.num_here += 1
        if self.away:
            raise Away("it rests")

    async def gone(self) -> None:
        self.num_gone += 1
        if self.failure is not None:
            raise self.failure


async def test_one_that_was_told_hears_of_the_end_whatever_came_between(caplog: pytest.LogCaptureFixture) -> None:
    broken, well, unknown = Leaving(RuntimeError("a fault of ours")), Leaving(), Leaving()
    unknown.away = True
    async with fake()() as worker:
        fleet = Fleet.of({"fake": worker})

        async def start() -> None: ...

        async with Registration([broken, well, unknown], fleet, beat_s=0.01, away_s=0.01) as registration:
            await registration.after(start)()
            await until(lambda: well.num_here > 0 and broken.num_here > 0)
            well.away = True
            await until(lambda: caplog.text.count("is unavailable") == 2)
            await registration.before(lambda: fleet.drain(1.0))()
    assert (broken.num_gone, well.num_gone, unknown.num_gone) == (1, 1, 0)
    assert "that this worker stops" in caplog.text


async def test_no_task_is_left() -> None:
    heard = Heard()
    before = asyncio.all_tasks()
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)):
            await until(lambda: heard.known)
    assert asyncio.all_tasks() <= before
