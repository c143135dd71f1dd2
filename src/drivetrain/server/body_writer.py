"""The ASGI extension `drivetrain.body`: one more part of a streaming body, sent in the call that brought it.

ASGI's own `send` is a coroutine, so it needs a task to run in. A token comes in a callback, and the extension lets that
callback write it.
"""

from __future__ import annotations

from typing import Protocol

import h11
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl

from drivetrain.server.lingering import LingeringTransport

EXTENSION = "drivetrain.body"


class WriteBody(Protocol):
    def __call__(self, data: bytes) -> bool:
        """Send `data` as one more part of the body, framed as the response's headers promise.

        Returns False, and has taken nothing, where the client has not taken all of the parts before, where it has left,
        and where the response is not in its body: not started yet, or complete. The caller then uses ASGI's `send`,
        which waits, ignores or raises as the case may be. Only for the event loop's own thread.
        """
        ...


def write_body_of(scope: Scope) -> WriteBody | None:
    """None on a server that does not offer it."""
    offered: WriteBody | None = scope.get("extensions", {}).get(EXTENSION)
    return offered


class BodyWriter:
    """The connection's `WriteBody` for one response.

    The scope refers to it, and the connection to the scope. `end` lets go of the connection, so that no ring is left
    that only the garbage collector can open.
    """

    def __init__(self, conn: h11.Connection, transport: LingeringTransport, flow: FlowControl) -> None:
        self._open: tuple[h11.Connection, LingeringTransport, FlowControl] | None = (conn, transport, flow)

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
