"""Parts of a body that a connection sends in the call, over real sockets; and that nothing keeps a connection."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drivetrain.server.http.exchange import BODY_EXTENSION, WriteBody
from drivetrain.server.run import HttpServer, bind
from drivetrain.server.settings import ServerSettings

START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
END: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": False}


class Site:
    """An application that hands its door to the test, and goes on when the test says so."""

    def __init__(self) -> None:
        self.doors: asyncio.Queue[tuple[WriteBody, Any]] = asyncio.Queue()
        self.go_on = asyncio.Semaphore(0)
        self.port = 0
        self.server: HttpServer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        door = scope["extensions"][BODY_EXTENSION]
        assert not door(b"too early")
        await self.doors.put((door, send))
        await self.go_on.acquire()
        await send(START if scope["path"] != "/sized" else {**START, "headers": [(b"content-length", b"3")]})
        await self.doors.put((door, send))
        await self.go_on.acquire()
        await send(END)

    def refs(self) -> list[weakref.ref[Any]]:
        return [weakref.ref(connection) for connection in self.server.server_state.connections]


@asynccontextmanager
async def running() -> AsyncIterator[Site]:
    site, settings = Site(), ServerSettings(port=0)
    sock = bind(settings)
    site.port = sock.getsockname()[1]
    site.server = HttpServer(site, settings)
    serving = asyncio.create_task(site.server.serve(sockets=[sock]))
    try:
        yield site
    finally:
        site.server.should_exit = True
        await serving


async def ask(site: Site, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(first + b"\r\nHost: localhost\r\n\r\n")
    return reader, writer


async def started(site: Site) -> WriteBody:
    await site.doors.get()
    site.go_on.release()
    return (await site.doors.get())[0]


async def test_a_part_is_a_chunk_and_the_end_is_asgi_s() -> None:
    async with running() as site:
        reader, writer = await ask(site, b"GET / HTTP/1.1")
        door = await started(site)
        assert door(b"one")
        assert door(b"")
        assert door(b"three")
        assert (await reader.readuntil(b"\r\n\r\n")).lower().count(b"transfer-encoding: chunked") == 1
        assert await reader.readexactly(18) == b"3\r\none\r\n5\r\nthree\r\n"
        site.go_on.release()
        assert await reader.readexactly(5) == b"0\r\n\r\n"
        assert not door(b"too late")
        writer.close()


async def test_the_kernel_holds_back_no_small_piece() -> None:
    """Else what follows a head or an event waits until the client acknowledges what came before: 40 ms on Linux."""
    async with running() as site:
        _, writer = await ask(site, b"GET / HTTP/1.1")
        await started(site)
        (connection,) = site.server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        site.go_on.release()
        writer.close()


async def test_it_is_plain_for_http_1_0_and_for_a_known_length() -> None:
    async with running() as site:
        for first in (b"GET / HTTP/1.0", b"GET /sized HTTP/1.1"):
            reader, writer = await ask(site, first)
            door = await started(site)
            assert door(b"one")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(3) == b"one"
            site.go_on.release()
            writer.close()


async def test_the_door_of_one_answer_does_not_open_in_the_next() -> None:
    async with running() as site:
        _, writer = await ask(site, b"GET / HTTP/1.1")
        door = await started(site)
        site.go_on.release()
        writer.write(b"GET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        next_door = await started(site)
        assert next_door(b"a")
        assert not door(b"b")
        site.go_on.release()
        writer.close()


async def test_it_takes_nothing_for_head() -> None:
    async with running() as site:
        _, writer = await ask(site, b"HEAD / HTTP/1.1")
        door = await started(site)
        assert not door(b"one")
        site.go_on.release()
        writer.close()


async def test_it_takes_nothing_from_a_reader_that_is_behind_or_gone() -> None:
    async with running() as site:
        reader, writer = await ask(site, b"GET / HTTP/1.1")
        door = await started(site)
        taken = 0
        while door(b"x" * 100_000):
            taken += 1
            assert taken < 10_000
        head = await reader.readuntil(b"\r\n\r\n")
        assert head
        for _ in range(taken):  # all that it took, and nothing that it did not
            assert await reader.readuntil(b"\r\n") == b"186a0\r\n"
            assert await reader.readexactly(100_002)
        while not door(b"again"):
            await asyncio.sleep(0.001)
        assert await reader.readuntil(b"\r\n") == b"5\r\n"
        writer.close()
        while door(b"gone"):
            await asyncio.sleep(0.001)
        site.go_on.release()


@pytest.mark.parametrize("how", ["answered", "left"])
async def test_nothing_keeps_a_connection_that_is_over(how: str) -> None:
    async with running() as site:
        gc.collect()
        gc.disable()
        try:
            _, writer = await ask(site, b"GET / HTTP/1.1")
            door = await started(site)
            assert door(b"one")
            refs = site.refs()
            assert len(refs) == 1
            if how == "left":
                writer.close()
                while site.server.server_state.connections:
                    await asyncio.sleep(0.001)
            site.go_on.release()
            while site.server.server_state.tasks:
                await asyncio.sleep(0.001)
            writer.close()
            while site.server.server_state.connections:
                await asyncio.sleep(0.001)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert [ref() for ref in refs] == [None]  # although its door is still held here
            assert not door(b"two")
        finally:
            gc.enable()
