"""One HTTP connection: uvicorn's own, with bounds on what a client may hold open without doing anything.

- A request's line and headers must arrive within `receipt_timeout_s`, as a whole and from the first byte on.
- A client that takes no byte for `write_timeout_s` while we have some is cut off, not waited for.
- What is not HTTP gets an OpenAI error body like everything else.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from drivetrain.server.errors import error_body
from drivetrain.server.settings import ServerSettings

_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: what was not taken is dropped."""


class _Conversation(h11.Connection):
    """h11's, with less to do for each token: a chunk is spelled here, and a head goes out with what follows it."""

    _head = b""
    in_chunks = False
    """Whether the next part of the body is just one more chunk."""

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override] # all of its overloads
        if self.in_chunks and type(event) is h11.Data:
            return chunk(event.data)
        said = super().send(event)
        self.in_chunks = False
        if type(event) is h11.Response:
            self._head = said or b""
            return b""
        if self._head and said is not None:
            self.in_chunks = type(event) is h11.Data and b"\r\ntransfer-encoding: chunked\r\n" in self._head.lower()
            said, self._head = self._head + said, b""
        return said


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class Connection(H11Protocol):
    settings: ServerSettings
    """Set by `connection_class`, since uvicorn makes the instances."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = self._conversation = _Conversation(h11.SERVER, self.settings.max_header_bytes)
        self._receipt: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            transport.abort()
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_request()
        elif self._receipt is not None:
            self._receipt.cancel()
            self._receipt = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.settings.write_timeout_s, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._await_request()

    def send_400_response(self, msg: str) -> None:
        """The first error status that fits. Where an answer has begun, there is nothing left to say."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()
            return
        exc = sys.exc_info()[1]
        status = exc.error_status_hint if isinstance(exc, h11.RemoteProtocolError) else 400
        self._refuse(status, "the headers are too large" if status == 431 else "this is not a valid HTTP request")

    def _await_request(self) -> None:
        if self._receipt is None:
            self._receipt = self.loop.call_later(self.settings.receipt_timeout_s, self._too_slow)

    def _too_slow(self) -> None:
        self._receipt = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, "the request did not arrive in time")
        else:
            self.transport.close()

    def _cut_off(self) -> None:
        """Closing would wait for the client to take the rest, which is what it does not do; so would the kernel."""
        self._stalled = None
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        code = {431: "headers_too_large", 408: "request_timeout"}.get(status, "bad_http")
        body = error_body(message, kind="invalid_request_error", code=code)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._receipt, self._stalled):
            if timer is not None:
                timer.cancel()
        self._receipt = self._stalled = None


def connection_class(of: ServerSettings) -> type[Connection]:
    class Bounded(Connection):
        settings = of

    return Bounded
