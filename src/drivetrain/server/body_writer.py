"""The way past ASGI's `send` for parts of a body: a token comes in a callback, where no coroutine can run."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.flow_control import FlowControl


class BodyWriter:
    """The connection's `extensions.WriteBody` for one response, framed by h11 as the response's headers promise.

    The scope refers to it, and the connection to the scope. `end` lets go of the connection, so that no ring is left
    that only the garbage collector can open.
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
