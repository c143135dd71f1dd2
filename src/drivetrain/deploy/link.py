"""One connection from a replica to each ingress that calls it, which brings the events of all their requests.

Serve routes each request, ends it, and knows when it has ended. But an item of a stream costs Ray half a millisecond
on either side, and an engine makes one for each token of each request. So events go past Ray: the caller listens, and
says in each call where and under which number; the replica connects once, and sends what a step of the engine brought
for all requests in one piece. Where the replica cannot connect, its items go by the call itself.

A line is a number, a space, and an item of `wire`, which has no line breaks. The first line of a connection is the key.
Knows no Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import secrets
import time
from collections.abc import Iterator
from typing import Any, Protocol, cast

from drivetrain.deploy import wire

GREETING_S = 5.0
"""For the key to come. Nobody else has any business here."""

MAX_GREETING = 256

CONNECT_S = 2.0

AWAY_S = 30.0
"""A caller that could not be reached is not tried again for so long."""

MAX_UNSENT = 64 * 2**20
"""Bytes that wait for a caller which does not read: beyond, it is given up with all its requests."""

Address = tuple[str, int, str]
"""Host, port, key."""

_log = logging.getLogger(__name__)


class Run(Protocol):
    """A request of the caller."""

    def take(self, item: bytes) -> None: ...

    def broken(self) -> None:
        """No item will come any more by the connection that brought the first ones."""
        ...


class Inlet:
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
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Reading(self), self._host, 0)
        except OSError as exc:
            _log.warning("cannot listen on %s (%r): events take the longer way", self._host, exc)
            return
        self._port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for reading in list(self._readings):
            reading.transport.close()

    @contextlib.contextmanager
    def expect(self, run: Run) -> Iterator[bytes]:
        """Where the replica is to send the items of this run, for its call; nowhere before `open`."""
        if self._server is None:
            yield b""
            return
        number = next(self._numbers)
        self._runs[number] = run
        try:
            yield wire.dumps([self._host, self._port, self._key, number])
        finally:
            del self._runs[number]
            for reading in self._readings:
                reading.numbers.discard(number)

    # What the connections tell

    def admits(self, key: bytes) -> bool:
        return hmac.compare_digest(key, self._key.encode())

    def connected(self, reading: _Reading) -> None:
        self._readings.add(reading)

    def take(self, line: bytes) -> int:
        """Hand on what a line holds. What comes for a request that has ended is nobody's. Returns the number."""
        told, _, item = line.partition(b" ")
        number = int(told)
        run = self._runs.get(number)
        if run is not None:
            run.take(item)
        return number

    def lost(self, reading: _Reading) -> None:
        self._readings.discard(reading)
        for number in reading.numbers & self._runs.keys():
            self._runs[number].broken()


class _Reading(asyncio.Protocol):
    """One connection of a replica."""

    transport: asyncio.Transport

    def __init__(self, inlet: Inlet) -> None:
        self.numbers: set[int] = set()
        self._inlet = inlet
        self._known = False
        self._rest: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's, which Serve runs, is none by its class
        self._inlet.connected(self)
        self._timer = asyncio.get_running_loop().call_later(GREETING_S, self._expire)

    def data_received(self, data: bytes) -> None:
        first, *more = data.split(b"\n")
        self._rest.append(first)
        for following in more:
            self._line(b"".join(self._rest))
            self._rest = [following]
        if not self._known and sum(map(len, self._rest)) > MAX_GREETING:
            self.transport.abort()

    def _line(self, line: bytes) -> None:
        if self._known:
            self.numbers.add(self._inlet.take(line))
        elif self._inlet.admits(line):
            self._known = True
        else:
            self.transport.abort()

    def _expire(self) -> None:
        if not self._known:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._inlet.lost(self)


class Outlets:
    """The replica's end: a connection to each caller that said where it listens."""

    def __init__(self) -> None:
        self._connections: dict[Address, asyncio.Task[_Writing | None]] = {}
        self._away: dict[Address, float] = {}

    async def way(self, reply: bytes) -> Way | None:
        """To where a call wants its items; None where it said nothing, or where there is no way."""
        if not reply:
            return None
        host, port, key, number = wire.loads(list[Any], reply)
        address = (host, port, key)
        if address not in self._connections:
            if time.monotonic() < self._away.get(address, 0.0):
                return None
            self._connections[address] = asyncio.create_task(self._connect(address))
        writing = await asyncio.shield(self._connections[address])
        return Way(writing, number) if writing is not None else None

    async def _connect(self, address: Address) -> _Writing | None:
        """Either it stands in `_connections` until it is lost, or it is gone from there when this returns."""
        host, port, key = address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writing = await loop.create_connection(lambda: _Writing(self, address), host, port)
        except OSError as exc:
            _log.warning("no connection to the caller at %s (%r): its events take the longer way", host, exc)
            now = time.monotonic()
            self._away = {known: until for known, until in self._away.items() if until > now}
            self._away[address] = now + AWAY_S
            self.lost(address)
            return None
        writing.send(key.encode())
        return writing

    def lost(self, address: Address) -> None:
        self._connections.pop(address, None)

    def close(self) -> None:
        for made in list(self._connections.values()):
            if not made.done():
                made.cancel()
            elif (writing := made.result()) is not None:
                writing.transport.close()


class _Writing(asyncio.Protocol):
    """One connection to a caller. What is sent within one turn of the loop goes as one piece."""

    transport: asyncio.Transport

    def __init__(self, outlets: Outlets, address: Address) -> None:
        self._outlets = outlets
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's, which Serve runs, is none by its class

    def send(self, line: bytes) -> bool:
        """Whether anybody is there."""
        if not self._lines:
            self._loop.call_soon(self._flush)
        self._lines.append(line)
        return not self._lost

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if self._lost:
            return
        self.transport.write(b"\n".join([*lines, b""]))
        if self.transport.get_write_buffer_size() > MAX_UNSENT:
            _log.warning("a caller does not read: %d bytes wait for it, and it is given up", MAX_UNSENT)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._outlets.lost(self._address)


class Way:
    """Where the items of one request go."""

    def __init__(self, writing: _Writing, number: int) -> None:
        self._writing = writing
        self._number = b"%d " % number

    def send(self, item: bytes) -> bool:
        """Whether anybody is there."""
        return self._writing.send(self._number + item)
