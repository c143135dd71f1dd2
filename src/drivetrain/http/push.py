"""Asks a server on this machine, and hands its answer on where it arrives, without waking a task for it: beside a model
that computes on every core, each switch costs more than the work."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable

from drivetrain.http.address import Address
from drivetrain.http.parser import AnswerParser, spelled

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Take = Callable[[AnswerParser, bytes], bool]
"""Takes a part of the body, on the event loop, and the parser for its status; True if that is enough."""


async def pushed(
    address: Address, method: str, path: str, headers: dict[str, str], body: bytes, take: Take
) -> AnswerParser:
    """Returns when the answer is over or `take` has enough. `address` has the number of a host, not its name.

    Leaving resets the connection, which the server notices with the next thing that it writes. Raises `OSError` where
    there is no connection or it breaks, `Broken` for an answer that is none, and what `take` raises.
    """
    loop = asyncio.get_running_loop()
    request, parser = spelled(address, method, path, headers, body), AnswerParser(method)
    exchange = _Exchange(request, parser, take, loop.create_future())
    try:
        transport, _ = await loop.create_connection(lambda: exchange, sock=_connecting(address))
    except BaseException:
        exchange.done.cancel()
        raise
    try:
        await exchange.done
    finally:
        transport.abort()
    return parser


def _connecting(address: Address) -> socket.socket:
    """On the way to a server on this machine there is nothing to look up, and nothing to wait for."""
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    sock.setblocking(False)
    failed = sock.connect_ex((address.host, address.port))
    if failed not in {0, errno.EINPROGRESS}:
        sock.close()
        raise OSError(failed, os.strerror(failed))
    return sock


class _Exchange(asyncio.Protocol):
    """One request and its answer. `done` is settled once: by the end, by `take` having enough, or by an error."""

    def __init__(self, request: bytes, parser: AnswerParser, take: Take, done: asyncio.Future[None]) -> None:
        self._request = request
        self._parser = parser
        self._take = take
        self.done = done

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as of any TCP connection
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        if not self.done.done():  # who asks may have left meanwhile
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            for part in self._parser.feed(data):
                if self._take(self._parser, part):
                    self._settle()
                    return
            if self._parser.over:
                self._settle()
        except Exception as exc:  # noqa: BLE001 - it is raised where the answer is waited for
            self._settle(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            if exc is None and not self.done.done():
                self._parser.end()
        except Exception as cut_off:  # noqa: BLE001 - as above
            exc = cut_off
        self._settle(exc)

    def _settle(self, error: Exception | None = None) -> None:
        """Whoever waits may have been cancelled by what was handed on."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
