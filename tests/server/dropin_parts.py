"""What the tests of both worker protocols need: a server that speaks them, and their streams read."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from drivetrain.server.dropin import dbgpt, fastchat
from server.serving import OpenWorker, Served, serving

ROUTES = (*fastchat.ROUTES, *dbgpt.ROUTES)


@contextlib.contextmanager
def speaking(open_worker: OpenWorker, **settings: Any) -> Iterator[Served]:
    with serving(open_worker, more_routes=ROUTES, **settings) as served:
        yield served


def told(served: Served, path: str, body: Any) -> Any:
    """The answer of a route that says all it has to say with status 200."""
    status, _, data = served.request("POST", path, body)
    assert status == 200, data
    return json.loads(data)


def parts(served: Served, path: str, body: Any) -> list[Any]:
    """All of a stream, each part ended by NUL."""
    status, headers, data = served.request("POST", path, body)
    assert status == 200, data
    assert headers["content-type"] == "application/octet-stream"
    *found, rest = data.split(b"\0")
    assert rest == b""
    return [json.loads(part) for part in found]


def leave_early(served: Served, path: str, body: Any) -> None:
    """Read the first part, then hang up; the slot must be free soon."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n\r\n"
    with contextlib.closing(served.raw()) as connection:
        connection.sendall(head.encode() + data)
        received = b""
        while b"\0" not in received:
            received += connection.recv(4096)
        assert served.worker.status.running == 1
        connection.shutdown(socket.SHUT_RDWR)
    end = time.monotonic() + 5
    while served.worker.status.running:
        assert time.monotonic() < end, "the slot is still held"
        time.sleep(0.01)
