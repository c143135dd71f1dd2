"""Whether a client takes what waits for it: one that takes a little is served, one that takes nothing is cut off."""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
import sys

from drivetrain.server.lingering import LingeringTransport

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
