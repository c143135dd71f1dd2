"""Connections: whatever a client does with one, or leaves undone, it is gone in bounded time, and others are served.

Each kind of bad client comes `NUM` times at once; as many as the server takes are the slow tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bounds.attack import Victim, eventually, victim
from drivetrain.server.run import HttpServer, bind
from drivetrain.server.settings import ServerSettings

NUM = 64
MAX_CONNECTIONS = 2048
MB = 10**6

FILL = 10_000
"""More than the smallest buffers of a kernel hold."""

ENDLESS = {"model": "fake", "prompt": "x", "max_tokens": 600_000, "stream": True, "ignore_eos": True}


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/completions", length: int | None = None) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: localhost", b"Content-Length: %d" % (length or len(body)), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


STREAM = post(json.dumps(ENDLESS).encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Victim]:
    with victim(
        script={
            "repeat": True,
            "context_length": 10_000_000,
            "ids_per_step": 50,
            "step_delay_s": 0.01,
            "max_concurrency": 4096,
        },
        worker={"max_waiting": 4096, "reader_timeout_s": 2.0, "drain_s": 1.0},
        server={"receipt_timeout_s": 2, "write_timeout_s": 2, "keep_alive_s": 2, "max_connections": MAX_CONNECTIONS},
    ) as made:
        yield made


class Bad:
    """What a bad client sends, and what it does then. `leaves`: it closes and forgets."""

    def __init__(self, *sends: bytes, then: Callable[[socket.socket], object] = lambda sock: None) -> None:
        self.sends = sends
        self.then = then


def leave(sock: socket.socket) -> None:
    sock.close()


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


KINDS = {
    "silent": Bad(),
    "half a request line": Bad(b"GET /heal"),
    "headers without end": Bad(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n"),
    "a body shorter than its length": Bad(post(b"{", length=10)),
    "a body shorter than its length, and leaves": Bad(post(b"{", length=10), then=leave),
    "half a body and a half-close": Bad(post(b"{", length=10), then=half_close),
    "a request in front of rubbish": Bad(STREAM, b"rubbish" * 9000, then=leave),
    "a request and one more byte": Bad(STREAM, b"G", then=leave),
    "more than a little behind a request": Bad(STREAM, b"x" * 200_000, then=leave),
    "an upgrade": Bad(STREAM.replace(b"Host:", b"Connection: upgrade\r\nUpgrade: x\r\nHost:"), then=leave),
    "the last request of a connection, and rubbish": Bad(
        STREAM.replace(b"Host:", b"Connection: close\r\nHost:"), b"rubbish" * 9000, then=leave
    ),
    "never reads": Bad(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100),
    "never reads, and half-closes": Bad(STREAM, then=half_close),
    "half-closes": Bad(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", then=half_close),
    "a refusal not awaited": Bad(post(b"x" * 100_000, length=99 * MB), then=leave),
    "a refusal, and stays": Bad(post(b"x" * 100_000, length=99 * MB)),
    "a TLS hello": Bad(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x55" * 500),
    "an SSH banner": Bad(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "no newline": Bad(b"GET /" + b"a" * 20_000),
    "resets": Bad(STREAM, then=reset),
}


def come(server: Victim, kind: Bad, num: int) -> list[socket.socket]:
    """All are there at once, and have all sent, before the first one does what it does then."""
    sockets = []
    for _ in range(num):
        sock = server.raw()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sockets.append(sock)
        for data in kind.sends:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
    return sockets


def gone(server: Victim) -> bool:
    return server.num_connections() == 0


@pytest.mark.parametrize("num", [NUM, pytest.param(MAX_CONNECTIONS, marks=[pytest.mark.slow, pytest.mark.in_turn])])
@pytest.mark.parametrize("name", KINDS)
def test_bad_clients_are_gone_in_bounded_time(server: Victim, name: str, num: int) -> None:
    allow_files(2 * num + 200)
    kind = KINDS[name]
    sockets = come(server, kind, num)
    try:
        for sock in sockets:
            with contextlib.suppress(OSError):
                kind.then(sock)
        eventually(lambda: gone(server), 90)
        server.works()
    finally:
        for sock in sockets:
            sock.close()


def test_a_stream_that_nobody_reads_ends(server: Victim) -> None:
    """Not with as many as the server takes: their tokens alone would take this machine minutes."""
    sockets = come(server, Bad(STREAM), NUM)
    eventually(lambda: gone(server), 90)
    server.works()
    for sock in sockets:
        sock.close()


@pytest.fixture(scope="module")
def slow() -> Iterator[Victim]:
    with victim(script={"first_delay_s": 1000.0}) as made:
        yield made


@pytest.mark.parametrize("behind", [b"", b"G", b"rubbish" * 9000, b"x" * 1_000_000])
@pytest.mark.parametrize("header", [b"X: y", b"Connection: upgrade\r\nUpgrade: x", b"Connection: close"])
def test_who_leaves_before_the_answer_begins(slow: Victim, header: bytes, behind: bytes) -> None:
    """Nothing is written that could fail, so that only reading tells; what follows the request must not stop it."""
    body = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 2}).encode()
    sockets = come(slow, Bad(post(body, header), behind), 8)
    eventually(lambda: slow.num_connections() >= len(sockets))
    for sock in sockets:
        sock.close()
    eventually(lambda: gone(slow))


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"])
@pytest.mark.parametrize("then", [half_close, lambda sock: None])
@pytest.mark.parametrize("size", [1, 1000, 40_000, 200_000])
async def test_what_is_left_unread_holds_no_connection(head: bytes, then: Any, size: int) -> None:
    """However little it is: asyncio itself waits for ever until it is taken."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for connection in http.server_state.connections:
            sock = connection.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * (FILL + size)})

    settings = ServerSettings(port=0, write_timeout_s=0.5, keep_alive_s=0.5)
    listening = bind(settings)
    http = HttpServer(app, settings)
    serving = asyncio.create_task(http.serve(sockets=[listening]))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.connect(listening.getsockname())
        sock.sendall(head)
        async with asyncio.timeout(60):
            while not http.server_state.total_requests:
                await asyncio.sleep(0.01)
            then(sock)
            while http.server_state.connections:
                await asyncio.sleep(0.01)
    http.should_exit = True
    await serving


def test_a_trickle_ends(server: Victim) -> None:
    sockets = come(server, Bad(b"GET /health HTTP/1.1\r\nX-A: "), NUM)

    def trickled() -> bool:
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.send(b"a")
        return gone(server)

    eventually(trickled)
    server.works()
    for sock in sockets:
        sock.close()


@pytest.mark.parametrize(
    "sent", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HELO mail.example\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\tx"]
)
def test_what_cannot_become_http_is_refused_at_once(sent: bytes) -> None:
    """The time to wait for the rest would be an hour."""
    with victim(server={"receipt_timeout_s": 3600}) as patient, patient.raw() as sock:
        sock.sendall(sent)
        status, error = status_and_error(everything(sock))
        assert (status, error["code"]) == (400, "bad_http")


@pytest.fixture(scope="module")
def locked() -> Iterator[Victim]:
    with victim(server={"api_keys": ["key"], "max_header_bytes": 4096}) as made:
        yield made


REFUSED = {
    "no key": (401, post(b"", length=40 * MB)),
    "no key, and asks whether to go on": (401, post(b"", b"Expect: 100-continue", length=40 * MB)),
    "too large by its length": (413, post(b"", b"Authorization: Bearer key", length=40 * MB)),
    "headers too large": (431, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 5000),
    "no http": (400, b"nonsense\r\n"),
}


@pytest.mark.parametrize("size", [3 * MB, 8 * MB, 40 * MB])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_reaches_a_client_that_is_still_sending(locked: Victim, name: str, size: int) -> None:
    """It reads nothing before it has sent all: a reset would be raised by `sendall`."""
    expected, head = REFUSED[name]
    with locked.raw() as sock:
        sock.sendall(head)
        for _ in range(size // 100_000):
            sock.sendall(b"a" * 100_000)
        status, error = status_and_error(everything(sock))
        assert status == expected
        assert set(error) == {"message", "type", "param", "code"}
    locked.works()


def test_a_body_that_grows_too_large(locked: Victim) -> None:
    """Nobody says before how much comes."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n"
    with locked.raw() as sock:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(400):
            sock.sendall(b"186a0\r\n" + b"a" * 100_000 + b"\r\n")
        sock.sendall(b"0\r\n\r\n")
        assert status_and_error(everything(sock))[0] == 413


def test_what_is_read_without_a_key_is_bounded(locked: Victim) -> None:
    with locked.raw() as sock:
        sock.sendall(post(b"", length=10**12))
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 1000 * MB:
                sent += sock.send(b"a" * MB)
        assert sent < 200 * MB
    locked.works()


@pytest.mark.slow
def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    """It takes a little for many times as long as one may take nothing, and then nothing."""
    with (
        victim(
            script={"repeat": True, "context_length": 10_000_000, "ids_per_step": 200, "step_delay_s": 0.01},
            worker={"max_unread": 1_000_000, "reader_timeout_s": 600.0},
            server={"write_timeout_s": 6},
        ) as server,
        socket.socket() as sock,
    ):
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
        )  # before it connects: its window is small from then on
        sock.settimeout(60)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(STREAM)
        end = time.monotonic() + 24
        while time.monotonic() < end:
            assert sock.recv(400)
            time.sleep(0.1)
        eventually(lambda: server.num_connections() == 0)


def everything(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def status_and_error(data: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def allow_files(num: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < num:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(num, hard), hard))
