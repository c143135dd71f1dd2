"""What a client says never decides how a reply is framed."""

from __future__ import annotations

import json
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
    assert b"x-drivetrain-ignored-fields: transfer-encoding: chunked" in head
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert len(body) == length
    assert json.loads(body)["choices"][0]["text"]


def test_a_stream_is_in_chunks(lenient: Served) -> None:
    head, _, body = asked(lenient, stream=True).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    assert body.endswith(b"0\r\n\r\n")
    assert b"data: [DONE]" in body
