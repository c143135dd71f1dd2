"""A small HTTP server on this machine for the store's tests: it can break off, forget ranges, stall and count."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Resource:
    """What one path answers. `breaks` and `statuses` are used up, one a request; then it behaves."""

    body: bytes = b""
    content_type: str = "application/octet-stream"
    etag: str | None = '"v1"'
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200
    announce_length: bool = True
    stall_after: int | None = None


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    sent_bytes: int = 0


class Loopback:
    """`resources` by path, `requests` in order. `release` lets stalled answers go on."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.resources: dict[str, Resource] = {}
        self.requests: list[Request] = []
        self.stalled = threading.Event()
        self.release = threading.Event()

    def sent_bytes(self, path: str) -> int:
        return sum(request.sent_bytes for request in self.requests if request.path == path)

    def count(self, path: str) -> int:
        return sum(request.path == path for request in self.requests)


@contextmanager
def serving() -> Iterator[Loopback]:
    server = _QuietServer(("127.0.0.1", 0), _Handler)
    loopback = Loopback(server.server_address[1])
    server.loopback = loopback
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield loopback
    finally:
        loopback.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _QuietServer(ThreadingHTTPServer):
    loopback: Loopback
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: _QuietServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0]
        request = Request(self.command, path, dict(self.headers.items()))
        self.server.loopback.requests.append(request)
        resource = self.server.loopback.resources.get(path)
        if resource is None:
            self._send(404, {"Content-Length": "0"})
            return
        if resource.statuses:
            self._send(resource.statuses.pop(0), {"Content-Length": "0", **resource.headers})
            return
        status, start = self._range(resource)
        if status == 416:
            self._send(416, {"Content-Range": f"bytes */{len(resource.body)}", "Content-Length": "0"})
            return
        body = resource.body[start:]
        headers = {"Content-Type": resource.content_type, **resource.headers}
        if resource.announce_length:
            headers["Content-Length"] = str(len(body))
        if resource.etag is not None:
            headers["ETag"] = resource.etag
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{len(resource.body) - 1}/{len(resource.body)}"
        self._send(status, headers)
        if with_body:
            self._send_body(request, resource, body)

    def _range(self, resource: Resource) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match is None or not resource.ranges or resource.status != 200:
            return resource.status, 0
        if self.headers.get("If-Range", resource.etag) != resource.etag:
            return 200, 0
        start = int(match[1])
        return (206, start) if start < len(resource.body) else (416, 0)

    def _send(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_body(self, request: Request, resource: Resource, body: bytes) -> None:
        end = resource.breaks.pop(0) if resource.breaks else len(body)
        for at in range(0, min(end, len(body)), 16384):
            if resource.stall_after is not None and request.sent_bytes >= resource.stall_after:
                self.server.loopback.stalled.set()
                self.server.loopback.release.wait(30)
            chunk = body[at : min(at + 16384, end)]
            request.sent_bytes += len(chunk)  # the client may ask as soon as it has the last one
            self.wfile.write(chunk)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """Quiet."""
