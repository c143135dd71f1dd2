"""What a client says never decides how a reply is framed, and where a request ends is never open to doubt."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.serving import Served, fake, serving


@pytest.fixture(scope="module")
def lenient() -> Iterator[Served]:
    """Fields that nobody knows are named in a header of the reply."""
    with serving(fake(text="one two three"), unknown_fields="warn") as made:
        yield made


def asked(lenient: Served, **more: Any) -> bytes:
    body = json.dumps({"model": lenient.model, "prompt": "Hi", "max_tokens": 3, **more}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    with lenient.raw() as sock:
        sock.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        data = b""
        while piece := sock.recv(65536):
            data += piece
    return data


def test_a_field_that_looks_like_a_header(lenient: Served) -> None:
    head, _, body = asked(lenient, **{"transfer-encoding: chunked": 1}).partition(b"\r\n\r\n")
    assert b"x-drivetrain-ignored: transfer-encoding: chunked" in head
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert len(body) == length
    assert json.loads(body)["choices"][0]["text"]


def test_a_stream_is_in_chunks(lenient: Served) -> None:
    head, _, body = asked(lenient, stream=True).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert body.endswith(b"0\r\n\r\n")
    assert b"data: [DONE]" in body


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HIDDEN = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"transfer-encoding:chunked\r\nCONTENT-LENGTH:0\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n", 400),
        (HEAD + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 0, 0\r\n\r\n", 400),
        (HEAD + b"Content-Length: +0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 0x0\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: \r\n\r\n", 400),
        (HEAD + b"Content-Length : 0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"X-A: b\r\n Content-Length: 44\r\n\r\n", 400),
        (HEAD + b" Content-Length: 44\r\n\r\n", 400),
        (HEAD + b"X-A: b\nContent-Length: 44\r\n\r\n", 400),
        (HEAD + b"X-A: b\n\n", 400),
        (HEAD + b"X-A: b\rContent-Length: 44\r\n\r\n", 400),
        (HEAD + b"X-A\x00: b\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0 \x0b\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/2.0") + b"\r\n", 505),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/0.9") + b"\r\n", 505),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/1.2") + b"\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /health\r\n", 400),
        (b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /health HTTP/1.1 \r\nHost: localhost\r\n\r\n", 400),
        (b"GET /health http/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(lenient: Served, request_bytes: bytes, status: int) -> None:
    """And so is what follows it, which another reader may have taken for its body."""
    with lenient.raw() as sock:
        sock.sendall(request_bytes + HIDDEN)
        data = b""
        while piece := sock.recv(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert b"connection: close" in head.lower()
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}  # and nothing behind it


@pytest.mark.parametrize("cut", range(1, 70, 7))
def test_a_head_may_come_in_any_pieces(lenient: Served, cut: int) -> None:
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: y\r\n\r\n"
    with lenient.raw() as sock:
        for piece in (whole[:cut], whole[cut:]):
            sock.sendall(piece)
            time.sleep(0.01)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_old_client_gets_a_stream_without_chunks(lenient: Served) -> None:
    body = json.dumps({"model": lenient.model, "prompt": "Hi", "max_tokens": 3, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with lenient.raw() as sock:
        sock.sendall(head.encode() + body)
        data = b""
        while piece := sock.recv(65536):
            data += piece
    head_bytes, _, told = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head_bytes.lower()
    assert told.startswith(b"data: ")
    assert told.endswith(b"data: [DONE]\n\n")


def test_an_empty_line_in_front_of_a_request_is_passed_over(lenient: Served) -> None:
    """Old clients send one behind the body of the request before."""
    with lenient.raw() as sock:
        for empty in (b"\r\n", b"", b"\r\n"):
            sock.sendall(empty + HIDDEN)
            assert status_of(sock) == 200
        for pieces in ([b"{}", b"\r\n"], [b"{}\r\n"]):
            sock.sendall(HEAD + b"Content-Length: 2\r\n\r\n")
            for piece in pieces:
                sock.sendall(piece)
            assert status_of(sock) == 400  # `{}` asks for nothing
            sock.sendall(HIDDEN)
            assert status_of(sock) == 200


def status_of(sock: socket.socket) -> int:
    """Of one answer, which is read whole."""
    with http.client.HTTPResponse(sock) as response:
        response.begin()
        response.read()
        return response.status


def test_what_is_refused_of_transfer_encodings_is_said(lenient: Served) -> None:
    with lenient.raw() as sock:
        sock.sendall(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
        data = b""
        while piece := sock.recv(65536):
            data += piece
        assert b"the only supported Transfer-Encoding is chunked" in data
