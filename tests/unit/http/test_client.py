"""Asking a server, on the event loop and in a thread that waits: how it ends, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from drivetrain.http import address as addresses
from drivetrain.http import blocking
from drivetrain.http.address import Address
from drivetrain.http.client import connected
from drivetrain.http.parser import Broken, CutOff, NotHttp, TooLong

CERTIFICATE = Path(__file__).parent.parent / "tools" / "bench" / "localhost.pem"
HEAD = b"HTTP/1.1 200 OK\r\nX-A: b\r\n"
Served = tuple[int, dict[str, str], bytes]


@contextlib.asynccontextmanager
async def serving(
    answer: bytes, *, hold: bool = False, reset: bool = False, tls: bool = False
) -> AsyncIterator[Address]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if hold:
                await reader.read()
            if reset:
                await asyncio.sleep(0.05)
                writer.transport.abort()
        writer.close()

    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context) as server:
        yield Address.parse(f"http{'s' if tls else ''}://localhost:{server.sockets[0].getsockname()[1]}")


async def on_the_loop(address: Address, limit: int = 100) -> Served:
    async with asyncio.timeout(0.5), connected(address, timeout_s=5.0) as connection:
        answer = await connection.ask("GET", "/x", {})
        return answer.status, dict(answer.headers), await answer.whole(limit)


async def in_a_thread(address: Address, limit: int = 100) -> Served:
    answer = await asyncio.to_thread(blocking.ask, address, "GET", "/x", {}, timeout_s=0.5, limit=limit)
    return answer.status, dict(answer.headers), answer.body


BOTH = pytest.mark.parametrize("ask", [on_the_loop, in_a_thread])
Ask = Callable[..., Awaitable[Served]]


@BOTH
@pytest.mark.parametrize(
    "answer", [b"content-length: 2\r\n\r\nab", b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"]
)
async def test_an_answer_that_tells_its_end_is_not_waited_for(ask: Ask, answer: bytes) -> None:
    async with serving(HEAD + answer, hold=True) as address:
        status, headers, body = await ask(address)
    assert (status, headers["x-a"], body) == (200, "b", b"ab")


@BOTH
async def test_an_answer_until_the_connection_is_closed(ask: Ask) -> None:
    async with serving(HEAD + b"\r\nab") as address:
        assert (await ask(address))[2] == b"ab"


@BOTH
@pytest.mark.parametrize(
    ("answer", "reset", "kind"),
    [
        (b"", False, CutOff),
        (b"", True, CutOff),
        (HEAD + b"content-length: 5\r\n\r\nab", False, CutOff),
        (HEAD + b"content-length: 5\r\n\r\nab", True, CutOff),
        (b"SSH-2.0-x\r\n", False, NotHttp),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", False, NotHttp),
        (HEAD + b"\r\n" + b"x" * 101, False, TooLong),
    ],
)
async def test_an_answer_that_is_none(ask: Ask, answer: bytes, reset: bool, kind: type[Broken]) -> None:
    async with serving(answer, reset=reset) as address:
        with pytest.raises(Broken) as caught:
            await ask(address)
    assert type(caught.value) is kind


@BOTH
async def test_an_answer_that_does_not_come(ask: Ask) -> None:
    async with serving(HEAD, hold=True) as address:
        with pytest.raises(TimeoutError):
            await ask(address)


async def test_nobody_there_at_two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(b"") as address:
        pass

    async def both(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    with pytest.raises(ConnectionRefusedError):
        await on_the_loop(address)


@BOTH
async def test_nobody_there(ask: Ask) -> None:
    async with serving(b"") as address:
        pass
    with pytest.raises(ConnectionRefusedError):
        await ask(address)
    with pytest.raises(OSError, match=r"no name of a host"):
        await ask(Address.parse("http://a..b/v1"))


@BOTH
async def test_tls(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(HEAD + b"content-length: 2\r\n\r\nab", hold=True, tls=True) as address:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the server's side of a refusal
        try:
            with pytest.raises(ssl.SSLCertVerificationError):
                await ask(address)
        finally:
            asyncio.get_running_loop().set_exception_handler(None)
        monkeypatch.setattr(addresses, "_trusted", lambda: ssl.create_default_context(cafile=CERTIFICATE))
        assert (await ask(address))[2] == b"ab"


async def test_who_leaves_early_closes_the_connection() -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server, asyncio.timeout(5):
        address = Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with connected(address, timeout_s=5.0) as connection:
            parts = (await connection.ask("GET", "/x", {})).parts()
            assert await anext(parts) == b"a"
        await left.wait()
        with pytest.raises(CutOff):
            await anext(parts)
