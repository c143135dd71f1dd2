"""Asks a server on this machine and handles its answer right where it arrives, without waking a task: next to a model
that computes on every core, each switch costs more than the work itself."""

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
"""Called on the event loop with the parser, for the status, and a part of the body. Returns True if that is enough."""


async def pushed(
    address: Address,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    take: Take,
    *,
    sock: socket.socket | None = None,
) -> AnswerParser:
    """Returns when the answer is over or `take` has enough. The host in `address` must be an IP address.

    `sock`, if given, is connected; it is closed soon after the end, in any case.

    Leaving resets the connection, which the server notices when it next writes. Raises `OSError` if there is no
    connection or it breaks, `Broken` if the answer is not valid or not whole, and whatever `take` raises.
    """
    loop = asyncio.get_running_loop()
    request, parser = spelled(address, method, path, headers, body), AnswerParser(method)
    exchange = _Exchange(request, parser, take, loop.create_future())
    try:
        transport, _ = await loop.create_connection(lambda: exchange, sock=_connecting(address, sock))
    except BaseException:
        exchange.done.cancel()
        raise
    try:
        await exchange.done
    finally:
        transport.abort()
    return parser


def _connecting(address: Address, sock: socket.socket | None) -> socket.socket:
    """To a server on this machine there is nothing to look up and nothing to wait for."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = sock or socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
        if not self.done.done():  # the caller may have been cancelled meanwhile
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
        except Exception as exc:  # noqa: BLE001 - `pushed` raises it
            self._settle(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            if exc is None and not self.done.done():
                self._parser.end()
        except Exception as cut_off:  # noqa: BLE001 - as above
            exc = cut_off
        self._settle(exc)

    def _settle(self, error: Exception | None = None) -> None:
        """The waiting caller may have been cancelled by something that `take` did."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
