"""One HTTP connection: uvicorn's, with bounds on what a client may hold open without doing anything.

- A request's line and headers must arrive within `receipt_timeout_s` altogether, however they are split.
- A client that takes no byte for `write_timeout_s` while some are waiting is cut off (`transport`).
- Ambiguous requests are refused (`heads`), and the refusal reaches even a client that is still sending (`transport`).
- Reading never stops while an answer runs: that is how we notice that the client has left.
- A connection too many (`acceptor`) has its one request refused by the guard, in the words of its API.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from drivetrain.server.errors import error_body
from drivetrain.server.http.exchange import BODY_EXTENSION
from drivetrain.server.http.heads import NOT_HTTP, Fault, fault_in
from drivetrain.server.http.transport import LingeringTransport, WriteProgress, keep_little_unsent
from drivetrain.server.settings import ServerSettings

MAX_AHEAD_BYTES = HIGH_WATER_LIMIT
"""Bytes of pipelined requests that may wait for the current answer."""

REFUSING_KEY = "drivetrain.refusing"
"""In the scope of a request on a connection too many."""

REFUSING_S = 2.0
"""Seconds for the request of such a connection, and again for what is left of it once it has been refused."""

_RECEIVING = frozenset({h11.IDLE, h11.SEND_BODY, h11.ERROR})
"""The client's states until its whole request has arrived."""

_CODES = {431: "headers_too_large", 408: "request_timeout", 505: "version_not_supported"}

_MESSAGES = {431: "the headers are too large", 501: "the only supported Transfer-Encoding is chunked"}

_EMPTY_LINE = b"\r\n"


class Connection(H11Protocol):
    settings: ServerSettings
    """Set by `connection_class`, because uvicorn makes the instances."""

    transport: LingeringTransport

    refuses = False
    """Whether it is one too many. To be set before it is made, as is `on_lost`."""

    on_lost: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._receipt: asyncio.TimerHandle | None = None
        self._progress: WriteProgress
        self._body: BodyWriter | None = None
        self._ahead_bytes = 0
        self._asked_nothing_since: float | None = None

    @property
    def idle_since(self) -> float | None:
        """Since when no whole request has come and nothing is left to send, in the loop's time. None if that is not
        so."""
        idle = not self.transport.is_closing() and not self.transport.get_write_buffer_size()
        return self._asked_nothing_since if idle else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn's
        keep_little_unsent(transport)
        lingering = LingeringTransport(transport, self.conn, self._receipt_timeout_s)
        self._progress = WriteProgress(lingering, self.loop, self.settings.write_timeout_s)
        super().connection_made(lingering)
        self._note_whether_idle()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting()
        self._progress.end()
        self.transport.lost()
        self._unset_keepalive_if_required()
        self._end_answer()
        super().connection_lost(exc)
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self.transport.lingering:
            self.transport.discard(data)
        elif self.conn.their_state not in _RECEIVING:
            self._receive_ahead(data)
        else:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._await_request()
            else:
                self._stop_awaiting()
                self._asked_nothing_since = None

    def eof_received(self) -> None:
        """A client that closes its sending side has left: its request ends now, not when it has read the rest."""
        self._end_answer()

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0].startswith(_EMPTY_LINE):
            self.conn._receive_buffer.maybe_extract_at_most(len(_EMPTY_LINE))  # old clients send one after a body
        fault = fault_in(self.conn.trailing_data[0]) if self.conn.their_state is h11.IDLE else None
        if fault is not None:
            self._refuse(fault)
            return
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._offer_body_writer()
            if self.refuses:
                self.cycle.keep_alive = False
                self.scope[REFUSING_KEY] = True  # type: ignore[literal-required] # a key of ours
        if self.conn.their_state not in _RECEIVING and not self.transport.is_closing():
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._progress.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._progress.end()

    def on_response_complete(self) -> None:
        if self._body is not None:
            self._body.end()
        self._ahead_bytes = 0
        super().on_response_complete()
        self._note_whether_idle()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._await_request()

    def shutdown(self) -> None:
        if self.transport.is_closing():
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse with the status that h11 suggests. If an answer has begun, there is nothing left to say."""
        exc = sys.exc_info()[1]
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()
            return
        status = exc.error_status_hint if isinstance(exc, h11.RemoteProtocolError) else 400
        self._refuse(Fault(status, _MESSAGES.get(status, NOT_HTTP.message)))

    def _should_upgrade(self) -> bool:
        """A request to switch protocols is answered in HTTP, without the two log lines that uvicorn would write."""
        return False

    @property
    def _receipt_timeout_s(self) -> float:
        timeout_s = self.settings.receipt_timeout_s
        return min(timeout_s, REFUSING_S) if self.refuses else timeout_s

    def _note_whether_idle(self) -> None:
        self._asked_nothing_since = self.loop.time() if self.conn.their_state is h11.IDLE else None

    def _offer_body_writer(self) -> None:
        self._body = BodyWriter(self.conn, self.transport.inner, self.flow)
        if self.scope["method"] == "HEAD":
            self._body.end()
        self.scope["extensions"] = {BODY_EXTENSION: self._body}  # type: ignore[dict-item] # a callable, not options

    def _end_answer(self) -> None:
        """Tell the application that the client has left, and write nothing more."""
        if self._body is not None:
            self._body.end()
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type omits None
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()

    def _receive_ahead(self, data: bytes) -> None:
        """Keep a little for after this answer; if more comes, this answer is the connection's last."""
        self._ahead_bytes += len(data)
        if self._ahead_bytes > MAX_AHEAD_BYTES or self.conn.their_state is h11.MUST_CLOSE:
            self.cycle.keep_alive = False
            self.transport.discard(data)
        else:
            self.conn.receive_data(data)

    def _await_request(self) -> None:
        if self._receipt is None:
            self._receipt = self.loop.call_later(self._receipt_timeout_s, self._too_slow)

    def _stop_awaiting(self) -> None:
        if self._receipt is not None:
            self._receipt.cancel()
            self._receipt = None

    def _too_slow(self) -> None:
        self._receipt = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(Fault(408, "the request did not arrive in time"))
        else:
            self.transport.close()

    def _refuse(self, fault: Fault) -> None:
        self._stop_awaiting()
        self._unset_keepalive_if_required()
        self._end_answer()
        code = _CODES.get(fault.status, "bad_http")
        body = error_body(fault.message, kind="invalid_request_error", code=code)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=fault.status, headers=headers, reason=STATUS_PHRASES[fault.status]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.linger()


def connection_class(of: ServerSettings) -> type[Connection]:
    class Bounded(Connection):
        settings = of

    return Bounded


class BodyWriter:
    """The connection's `WriteBody` for one response, framed by h11 as the response's headers promise.

    The scope refers to it, and the connection to the scope. `end` drops the connection, so that no reference cycle is
    left to the garbage collector.
    """

    def __init__(self, conn: h11.Connection, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._open: tuple[h11.Connection, asyncio.Transport, FlowControl] | None = (conn, transport, flow)

    def __call__(self, data: bytes) -> bool:
        if self._open is None:
            return False
        conn, transport, flow = self._open
        if flow.write_paused or conn.our_state is not h11.SEND_BODY or transport.is_closing():
            return False
        transport.write(conn.send(h11.Data(data=data)))
        return True

    def end(self) -> None:
        self._open = None
