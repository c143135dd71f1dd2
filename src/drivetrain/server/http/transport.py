"""The transport under a connection: closes it without losing the last answer, and watches clients that do not read.

Closing a socket while bytes from the client are unread, or still coming, resets the connection, and a reset makes most
clients drop an answer that they have not read yet. So after a refusal we close our side only, read and drop what the
client still sends, within bounds, and then close the socket.

A client that reads slowly is served; one that reads nothing is cut off.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any

import h11

DISCARD_BYTES = 64 * 2**20
"""Bytes that a lingering connection may send before it is closed regardless."""

QUIET_S = 5.0
"""A client that has sent nothing for this long has stopped sending."""

_NO_LINGER = struct.pack("ii", 1, 0)


class LingeringTransport(asyncio.Transport):
    """asyncio's transport, with a `close` that waits for a client that is still sending.

    While it is `lingering`, the protocol gives incoming data to `discard`. It calls `lost` when the connection is lost.
    """

    def __init__(self, inner: asyncio.Transport, conn: h11.Connection, linger_s: float) -> None:
        super().__init__()
        self.lingering = False
        self.inner = inner
        """asyncio's transport."""
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
        """Close our side now, and the connection once the client has stopped sending."""
        if self.is_closing():
            return
        self.lingering = True
        self._until = self._loop.time() + self._linger_s
        self.inner.resume_reading()
        with contextlib.suppress(OSError):  # already reset: reading will tell
            self.inner.write_eof()
        self._look()

    def discard(self, data: bytes) -> None:
        self._quiet = False
        self._discarded += len(data)
        if self._discarded > DISCARD_BYTES:
            self.reset()

    def reset(self) -> None:
        """Drop the connection and all unsent data, in the kernel too."""
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


LOOKS = 8
"""How often a client is checked within its timeout."""

UNSENT_BYTES = 64 * 2**10
"""The kernel's limit on unsent data. By default it would keep megabytes for each client that does not read, and report
room only once a third of them was taken."""


class WriteProgress:
    """Runs while the transport has bytes that the kernel does not take.

    Nothing more is written meanwhile, so if there is less to send, the client has taken some.
    """

    def __init__(self, transport: LingeringTransport, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._transport = transport
        self._loop = loop
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._since = 0.0

    def begin(self) -> None:
        if self._timer is None:
            self._unsent, self._since = unsent(self._transport), self._loop.time()
            self._look_later()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        before, self._unsent = self._unsent, unsent(self._transport)
        if self._unsent < before:
            self._since = self._loop.time()
        if self._loop.time() - self._since >= self._timeout_s:
            self._timer = None
            self._transport.reset()
        else:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s / LOOKS, self._look)


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client's machine has not acknowledged; if the kernel does not say, those that are still here."""
    waiting = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return waiting
    import fcntl
    import termios

    queued = array.array("i", [0])
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, queued)
    return waiting + queued[0]


def keep_little_unsent(transport: asyncio.Transport) -> None:
    """Make a slow client show early: limit what the kernel keeps, and report the transport full when the kernel is."""
    transport.set_write_buffer_limits(high=0)
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
