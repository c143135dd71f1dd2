"""Clients that do not behave, on bare sockets. Each ends as stated, and a normal request still works."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest

from server.serving import Served, fake, serving


@pytest.fixture(scope="module")
def tight() -> Iterator[Served]:
    """Short times and small sizes, so that each bound is met."""
    open_worker = fake(
        {"reader_timeout_s": 1.0, "max_unread": 100_000},
        repeat=True,
        context_length=10_000_000,
        ids_per_step=50,
    )
    with serving(
        open_worker,
        receipt_timeout_s=1.0,
        write_timeout_s=1.5,
        keep_alive_s=1.0,
        max_body_bytes=100_000,
        max_headers=50,
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def still_works(tight: Served) -> Iterator[None]:
    yield
    tight.settle()
    tight.works()


def answer(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


def status_and_error(data: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/completions") -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


ENDLESS = json.dumps(
    {"model": "fake", "prompt": "x", "max_tokens": 600_000, "stream": True, "ignore_eos": True}
).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/x.y\r\nHost: localhost\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_not_http(tight: Served, data: bytes) -> None:
    with tight.raw() as sock:
        sock.sendall(data)
        status, error = status_and_error(answer(sock))
        assert status in {400, 501}
        assert error["code"] == "bad_http"


def test_an_absurd_length(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
        assert b" 500 " not in answer(sock)[:20]


@pytest.mark.parametrize("size", [33_000, 65_536, 300_000])
def test_large_headers(tight: Served, size: int) -> None:
    with tight.raw() as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"a" * size + b"\r\n\r\n")
        data = answer(sock)
        assert not data or status_and_error(data)[0] == 431  # nothing: reset while it still sent
        assert data or size > 65_536


def test_many_headers(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 60 + b"\r\n")
        status, error = status_and_error(answer(sock))
        assert (status, "in 50 lines" in str(error["message"])) == (431, True)


def test_a_long_address(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_and_error(answer(sock))[0] == 431


def test_a_large_body(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(post(b"a" * 100_001))
        status, error = status_and_error(answer(sock))
        assert (status, error["code"]) == (413, "body_too_large")
    with tight.raw() as sock:  # refused before it was sent
        sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert status_and_error(answer(sock))[0] == 413
    with tight.raw() as sock:  # nobody says how much comes
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"c350\r\n" + b"a" * 50_000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(3):
                sock.sendall(chunk)
            sock.sendall(b"0\r\n\r\n")
        assert status_and_error(answer(sock))[0] == 413


@pytest.mark.parametrize("whole", [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", post(b'{"model": "fake"}')])
def test_a_trickle(tight: Served, whole: bytes) -> None:
    began = time.monotonic()
    data = b""
    with tight.raw() as sock:
        sock.settimeout(0.1)
        for i in range(len(whole)):
            try:
                sock.sendall(whole[i : i + 1])
                data += sock.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if data:
                break
    assert time.monotonic() - began < 12
    assert b" 408 " in data[:20]


def test_a_trickle_on_a_second_request(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in sock.recv(65536)[:20]
        began = time.monotonic()
        sock.sendall(b"GET /hea")
        assert b"HTTP/1.1 408 " in answer(sock)
        assert time.monotonic() - began < 12


def test_silence(tight: Served) -> None:
    began = time.monotonic()
    with tight.raw() as sock:
        assert answer(sock) == b""
    assert time.monotonic() - began < 12


def test_a_body_that_never_comes(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in answer(sock)[:20]
    with tight.raw() as sock:  # and one that hangs up instead
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")


def test_half_closed_is_gone(tight: Served) -> None:
    """Who shuts its sending side down has left: its answer is ended, as behind the usual proxies."""
    with tight.raw() as sock:
        sock.sendall(post(ENDLESS))
        sock.recv(1000)
        assert tight.worker.status.running == 1
        sock.shutdown(socket.SHUT_WR)
        tight.settle(3)


def test_a_reader_that_never_reads(tight: Served) -> None:
    """The slot is freed by the worker's reader timeout, the connection by the write timeout."""
    with tight.raw() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(post(ENDLESS))
        time.sleep(0.5)
        assert tight.worker.status.running == 1
        tight.settle(20)
        end = time.monotonic() + 10
        while any("run_asgi" in name for name in tight.tasks()):
            assert time.monotonic() < end
            time.sleep(0.05)
        answer(sock)  # what was on its way, and then the end


def test_pipelined_requests_are_answered_in_turn(tight: Served) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with tight.raw() as sock:
        sock.sendall(one * 3)
        data = b""
        while data.count(b'"ok"') < 3:
            data += sock.recv(65536)


def test_a_bad_request_after_a_good_one(tight: Served) -> None:
    with tight.raw() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in sock.recv(65536)[:20]
        sock.sendall(b"nonsense\r\n\r\n")
        assert status_and_error(answer(sock))[0] == 400


def test_an_upgrade_is_passed_over(tight: Served, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"connection": "upgrade", "upgrade": "websocket"}
    assert tight.request("GET", "/health", headers=headers)[0] == 200
    assert not caplog.records  # nobody can fill the log with it


def test_expect_continue(tight: Served) -> None:
    with tight.raw() as sock:
        body = b'{"model": "fake", "prompt": "x", "max_tokens": 1}'
        head = post(body, b"Expect: 100-continue").removesuffix(body)
        sock.sendall(head)
        assert b" 100 " in sock.recv(1000)
        sock.sendall(body)
        assert b" 200 " in sock.recv(65536)[:20]
