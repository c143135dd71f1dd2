"""One connection from a replica to each ingress that calls it, which brings the events of all their requests.

Serve routes each request, ends it, and knows when it has ended. But an item of a stream costs Ray half a millisecond
on either side, and an engine makes one for each token of each request. So events go past Ray: the caller listens, and
says in each call where and under which number; the replica connects once, and sends what a step of the engine brought
for all requests in one piece. Where the replica cannot connect, its items go by the call itself.

A line is a number, a space, and an item of `wire`, which has no line breaks. The first line of a connection is the key,
and is answered with a line, so that the replica knows whom it speaks to. Knows no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Protocol, cast

from drivetrain.scale.ray.protocol import ReplyTo

GREETING_S = 5.0
"""For the key to come. Nobody else has any business here."""

MAX_GREETING = 256

MAX_STRANGERS = 256
"""Connections that may be without their key at a time."""

CONNECT_S = 2.0

AWAY_S = 30.0
"""A caller that could not be reached is not tried again for so long, and then while requests go the longer way."""

MAX_UNSENT = 64 * 2**20
"""Bytes that wait for a caller which does not read: beyond, it is given up with all its requests."""

SILENT_S = 30
"""A connection whose other end does not even acknowledge is lost by then: a network may drop one without a word."""

Address = tuple[str, int, str]
"""Host, port, key."""

_log = logging.getLogger(__name__)


class Run(Protocol):
    """A request of the caller."""

    def take(self, item: bytes) -> None: ...

    def broken(self) -> None:
        """No item will come any more by the connection that brought the first ones."""
        ...


class EventServer:
    """The caller's end. It listens on the address of this machine in the cluster, for those that know the key.

    Without an address it does not, and all items come by the calls.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._key = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._numbers = itertools.count()
        self._runs: dict[int, Run] = {}
        self._readings: set[_Reading] = set()

    async def open(self) -> None:
        if not self._host:
            return
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Reading(self), self._host, 0, backlog=1024)
        except OSError as exc:
            _log.warning("cannot listen on %s (%r): events go through Ray instead", self._host, exc)
            return
        self._port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for reading in list(self._readings):
            reading.transport.close()

    @contextlib.contextmanager
    def expect(self, run: Run) -> Iterator[ReplyTo | None]:
        """Where the replica is to send the items of this run, for its call; nowhere before `open`."""
        if self._server is None:
            yield None
            return
        number = next(self._numbers)
        self._runs[number] = run
        try:
            yield ReplyTo(self._host, self._port, self._key, number)
        finally:
            del self._runs[number]
            for reading in self._readings:
                reading.numbers.discard(number)

    # What the connections tell

    def admits(self, key: bytes) -> bool:
        return hmac.compare_digest(key, self._key.encode())

    def connected(self, reading: _Reading) -> bool:
        """Whether there is room for one more that has not said who it is."""
        self._readings.add(reading)
        return sum(not other.known for other in self._readings) <= MAX_STRANGERS

    def take(self, line: bytes, reading: _Reading) -> None:
        """Hand on what a line holds. What comes for a request that has ended is nobody's."""
        told, _, item = line.partition(b" ")
        number = int(told)
        run = self._runs.get(number)
        if run is not None:
            reading.numbers.add(number)
            run.take(item)

    def lost(self, reading: _Reading) -> None:
        self._readings.discard(reading)
        for number in reading.numbers & self._runs.keys():
            self._runs[number].broken()


class _Reading(asyncio.Protocol):
    """One connection of a replica."""

    transport: asyncio.Transport

    def __init__(self, inlet: EventServer) -> None:
        self.numbers: set[int] = set()
        self.known = False
        self._inlet = inlet
        self._rest: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = _watched(transport)
        if self._inlet.connected(self):
            self._timer = asyncio.get_running_loop().call_later(GREETING_S, self._expire)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        first, *more = data.split(b"\n")
        self._rest.append(first)
        for following in more:
            if not self._line(b"".join(self._rest)):
                return
            self._rest = [following]
        if not self.known and sum(map(len, self._rest)) > MAX_GREETING:
            self.transport.abort()

    def _line(self, line: bytes) -> bool:
        """Whether to go on."""
        if self.known:
            self._inlet.take(line, self)
            return True
        if not self._inlet.admits(line):
            self.transport.abort()
            return False
        self.known = True
        self.transport.write(b"\n")
        return True

    def _expire(self) -> None:
        if not self.known:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._inlet.lost(self)


class EventClient:
    """The replica's end: a connection to each caller that said where it listens."""

    def __init__(self) -> None:
        self._connections: dict[Address, asyncio.Task[_Writing | None]] = {}
        self._away: dict[Address, float] = {}
        """Those that could not be reached, and until when they are not tried."""

    async def way(self, reply: ReplyTo | None) -> Route | None:
        """To where a call wants its items; None where it said nothing, or where there is no way now."""
        if reply is None:
            return None
        address = (reply.host, reply.port, reply.key)
        away = self._away.get(address)
        if address not in self._connections:
            if away is not None and time.monotonic() < away:
                return None
            self._connections[address] = asyncio.create_task(self._connect(address))
        connecting = self._connections[address]
        if away is not None and not connecting.done():
            return None
        writing = await asyncio.shield(connecting)
        return Route(writing, reply.number) if writing is not None else None

    async def _connect(self, address: Address) -> _Writing | None:
        """Either it stands in `_connections` until it is lost, or it is gone from there when this returns."""
        host, port, key = address
        writing: _Writing | None = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writing = await loop.create_connection(lambda: _Writing(self, address), host, port)
                await writing.greet(key)
        except Exception as exc:  # noqa: BLE001 - whatever keeps it from being reached, there is the longer way
            _log.warning("no connection to the caller at %s (%r): its events go through Ray instead", host, exc)
            if writing is not None:
                writing.transport.abort()
            now = time.monotonic()
            self._away = {known: until for known, until in self._away.items() if until > now - AWAY_S}
            self._away[address] = now + AWAY_S
            self.lost(address)
            return None
        self._away.pop(address, None)
        return writing

    def lost(self, address: Address) -> None:
        self._connections.pop(address, None)

    def close(self) -> None:
        """What was sent still goes."""
        connections, self._connections = list(self._connections.values()), {}
        for made in connections:
            if not made.done():
                made.cancel()
            elif not made.cancelled() and (writing := made.result()) is not None:
                writing.close()


class _Writing(asyncio.Protocol):
    """One connection to a caller. What is sent within one turn of the loop goes as one piece."""

    transport: asyncio.Transport

    def __init__(self, outlets: EventClient, address: Address) -> None:
        self._outlets = outlets
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = _watched(transport)

    async def greet(self, key: str) -> None:
        """Return once the other end has taken the key."""
        self.send(key.encode())
        await self._answered

    def data_received(self, data: bytes) -> None:
        if not self._answered.done():
            self._answered.set_result(None)

    def send(self, line: bytes) -> bool:
        """Whether anybody is there."""
        if not self._lines:
            self._loop.call_soon(self._flush)
        self._lines.append(line)
        return not self._lost

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if self._lost or not lines:
            return
        self.transport.write(b"\n".join([*lines, b""]))
        if self.transport.get_write_buffer_size() > MAX_UNSENT:
            _log.warning("a caller does not read: %d bytes are waiting for it, so it is dropped", MAX_UNSENT)
            self.transport.abort()

    def close(self) -> None:
        self._flush()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self._answered.done():
            self._answered.set_exception(ConnectionError("it was closed before it was answered"))
        self._outlets.lost(self._address)


class Route:
    """Where the items of one request go."""

    def __init__(self, writing: _Writing, number: int) -> None:
        self._writing = writing
        self._number = b"%d " % number

    def send(self, item: bytes) -> bool:
        """Whether anybody is there."""
        return self._writing.send(self._number + item)


def _watched(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """With a time after which a network that carries nothing any more counts as a lost connection."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_S // 2),
        ("TCP_KEEPINTVL", SILENT_S // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", SILENT_S * 1000),
    ):
        if hasattr(socket, name):  # not every system has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return cast("asyncio.Transport", transport)  # uvloop's, which Serve runs, is none by its class
