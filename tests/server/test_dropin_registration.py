"""Telling controllers: a server of ours stands for them, and what it heard is compared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from drivetrain.address import Address
from drivetrain.fleet.fleet import Fleet
from drivetrain.server.dropin.controllers import Controller, DbGptController, FastChatController
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
        await until(lambda: "is away" in caplog.text)
        assert fleet.ready
        with controller(heard, port):
            await until(lambda: heard.count("/receive_heart_beat") >= 1)
        await until(lambda: caplog.text.count("is away") == 2)
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
    assert [said[0] for said in heard.said[-2:]] == ["DELETE", "DELETE"]
    assert heard.said[-1][1] == "/api/controller/models?model_name=fake%40text2vec&host=10.0.0.7&port=8001"


async def test_no_task_is_left() -> None:
    heard = Heard()
    before = asyncio.all_tasks()
    with controller(heard) as address:
        async with attended(lambda fleet: FastChatController(address, HERE, fleet)):
            await until(lambda: heard.known)
    assert asyncio.all_tasks() == before
