"""Accepts connections while there are files for them. A new one too many takes the place of an idle one, or is refused.

asyncio's own accepting, out of files, tries again and again without a pause, and logs each time.

A new file gets the lowest free number. So if a connection gets one of the last `RESERVE`, files are short; and as none
with such a number is served, whatever else the process opens finds as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from drivetrain.server.http import file_limit
from drivetrain.server.http.connection import Connection

ACCEPTS = 16
"""Connections accepted in one turn of the loop."""

MAX_REFUSING = 4
"""Connections being refused at a time. Any more wait in the kernel until one of these is gone, which is soon."""

PATIENCE_S = 1.0
"""A connection on which no request has come for this long may be closed to make room."""

PAUSE_S = 0.1
"""After a connection that could not be accepted at all."""

TELL_EVERY_S = 60.0

_log = logging.getLogger("drivetrain.server")


class Acceptor:
    """`make` makes a connection; `connections` are those open now, of at most `most` that are served."""

    def __init__(
        self, sock: socket.socket, make: Callable[[], Connection], connections: Iterable[object], most: int
    ) -> None:
        self._sock = sock
        self._make = make
        self._connections = connections
        self._most = most
        self._last_file = file_limit.limit() - file_limit.RESERVE
        self._loop = asyncio.get_running_loop()
        self._serving = self._refusing = 0
        self._adopting: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._tell_next = 0.0
        self._stopped = False

    def start(self) -> None:
        if not self._stopped:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def stop(self) -> None:
        """Idempotent. The socket stays open."""
        self._stopped = True
        self._wait()
        if self._pause is not None:
            self._pause.cancel()

    def _wait(self) -> None:
        self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if self._refusing >= MAX_REFUSING:
                self._wait()
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._tell(f"cannot accept connections: {exc.strerror}")
                self._wait()
                self._pause = self._loop.call_later(PAUSE_S, self.start)
                return
            sock.setblocking(False)
            self._seat(sock)

    def _seat(self, sock: socket.socket) -> None:
        idle = None if self._fits(sock) else self._longest_idle()
        if idle is None:
            self._adopt(sock)
        else:
            idle.shutdown()
            self._loop.call_soon(self._seat_lower, sock)  # after the call that closes its socket

    def _seat_lower(self, sock: socket.socket) -> None:
        """With the number that has become free."""
        with contextlib.suppress(OSError):
            lower = sock.dup()
            sock.close()
            sock = lower
        self._adopt(sock)

    def _fits(self, sock: socket.socket) -> bool:
        return sock.fileno() < self._last_file and self._serving < self._most

    def _longest_idle(self) -> Connection | None:
        longest, since = None, self._loop.time() - PATIENCE_S
        for connection in self._connections:
            assert isinstance(connection, Connection)
            if (its := connection.idle_since) is not None and its <= since:
                longest, since = connection, its
        return longest

    def _adopt(self, sock: socket.socket) -> None:
        connection = self._make()
        if self._fits(sock):
            self._serving += 1
            connection.on_lost = self._served
        else:
            self._refusing += 1
            connection.on_lost = self._refused
            connection.refuses = True
            self._tell(self._why(sock))
        adopting = self._loop.create_task(self._loop.connect_accepted_socket(lambda: connection, sock))
        self._adopting.add(adopting)
        adopting.add_done_callback(self._adopting.discard)

    def _served(self) -> None:
        self._serving -= 1

    def _refused(self) -> None:
        self._refusing -= 1
        self.start()

    def _why(self, sock: socket.socket) -> str:
        if sock.fileno() < self._last_file:
            return f"all {self._most} connections are taken (--max-connections)"
        return f"this process may open only {file_limit.limit()} files; raise the limit (ulimit -n)"

    def _tell(self, what: str) -> None:
        """At most once in `TELL_EVERY_S`."""
        if self._loop.time() >= self._tell_next:
            self._tell_next = self._loop.time() + TELL_EVERY_S
            _log.warning("%s; %d connections are open, new ones are refused with 503", what, self._serving)
