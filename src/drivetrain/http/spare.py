"""Sockets made before they are needed, for a server that must be reachable even if this process has no file left."""

from __future__ import annotations

import contextlib
import socket
import threading


class SpareSockets:
    """Keeps `number` IPv4 sockets that are not connected. May be used from any thread."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._closed = False
        self._spare = [_new() for _ in range(number)]

    def take(self) -> socket.socket:
        """A spare one, or a new one if all are in use. Call `restock` once it is closed. Raises `OSError`."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return _new()

    def restock(self) -> None:
        """Make a new one in place of one that was closed; if there is no file for it, with the next one."""
        with self._lock, contextlib.suppress(OSError):
            while not self._closed and len(self._spare) < self._number:
                self._spare.append(_new())

    def close(self) -> None:
        """Idempotent. Those in use stay open."""
        with self._lock:
            self._closed = True
            spare, self._spare = self._spare, []
        for sock in spare:
            sock.close()


def _new() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
