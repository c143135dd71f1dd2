"""Closing a connection without taking the last answer away from the client.

A socket that is closed while bytes from the client are unread, or still come, resets the connection, and a reset makes
most clients drop an answer that they have not read yet. So a refusal is sent, then our side is closed, then what the
client still sends is read and dropped, within bounds, and only then is the socket closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

import h11

DISCARD_BYTES = 64 * 2**20
"""Of what nobody will read, what one connection may send before it is closed regardless."""

QUIET_S = 5.0
"""A client that sends nothing for so long has stopped sending."""

_NO_LINGER = struct.pack("ii", 1, 0)


class LingeringTransport(asyncio.Transport):
    """asyncio's transport, with a `close` that waits for a client that is still sending.

    While it is `lingering`, what comes is for `discard`. The protocol calls `lost` when the connection is.
    """

    def __init__(self, inner: asyncio.Transport, conn: h11.Connection, linger_s: float) -> None:
        super().__init__()
        self.lingering = False
        self.inner = inner
        """asyncio's own."""
        self._conn = conn
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._discarded = 0
        self._quiet = False
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self.is_closing():
            return
        if self._conn.their_state in {h11.SEND_BODY, h11.ERROR} or self._discarded:
            self.linger()
        else:
            self.inner.close()

    def linger(self) -> None:
        """Close our side now, and the connection when the client has stopped sending."""
        if self.is_closing():
            return
        self.lingering = True
        self._until = self._loop.time() + self._linger_s
        self.inner.resume_reading()
        with contextlib.suppress(OSError):  # reset already: reading tells
            self.inner.write_eof()
        self._look()

    def discard(self, data: bytes) -> None:
        self._quiet = False
        self._discarded += len(data)
        if self._discarded > DISCARD_BYTES:
            self.reset()

    def reset(self) -> None:
        """Drop the connection and what the client has not taken, in the kernel too."""
        sock = self.inner.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.inner.abort()

    def lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        left_s = self._until - self._loop.time()
        if self._quiet or left_s <= 0:
            self.inner.close()
            return
        self._quiet = True
        self._timer = self._loop.call_later(min(QUIET_S, left_s), self._look)

    def is_closing(self) -> bool:
        return self.lingering or self.inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.lingering:
            self.inner.write(data)

    def abort(self) -> None:
        self.inner.abort()

    def pause_reading(self) -> None:
        self.inner.pause_reading()

    def resume_reading(self) -> None:
        self.inner.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self.inner.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.inner.get_extra_info(name, default)
