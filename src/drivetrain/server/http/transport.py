"""The transport under a connection: closed without taking the last answer away from the client, and watched while bytes
wait for it.

A socket that is closed while bytes from the client are unread, or still come, resets the connection, and a reset makes
most clients drop an answer that they have not read yet. So a refusal is sent, then our side is closed, then what the
client still sends is read and dropped, within bounds, and only then is the socket closed.

A client that takes a little of what waits for it is served; one that takes nothing is cut off.
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


LOOKS = 8
"""How many times in its timeout a client is looked at."""

UNSENT_BYTES = 64 * 2**10
"""What the kernel keeps of what was not sent yet: by itself it would keep megabytes for each client that does not read,
and report room only when a third of them was taken."""


class WriteProgress:
    """Begun when the transport has bytes that the kernel does not take, ended when it has none.

    In between nothing more is written, so that whatever becomes less was taken.
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
    """Bytes that the client's machine has not confirmed; where the kernel does not say, those that are still here."""
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
    """Make what waits show: the transport is full as soon as the kernel is, and the kernel is full early."""
    transport.set_write_buffer_limits(high=0)
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
