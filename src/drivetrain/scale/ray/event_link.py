"""Events on their way from replicas to a caller, past Ray: one TCP connection between each replica and each caller.

Serve routes a request, ends it and knows when it has ended. But every item of a streaming call costs Ray half a
millisecond on either side, and an engine produces one per token and request. So the caller listens, and names its
address and a request number in each call. The replica connects to it once and sends what one engine step produced for
all requests in one write. A replica that cannot connect sends its items as those of the call.

On the wire, a line is a request number, a space, and an item as `protocol` writes it, which has no line breaks. The
first line is the key; the caller answers with an empty line, so that the replica knows who took the connection.
Knows no Ray.
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

KEY_TIMEOUT_S = 5.0
"""A connection that has not sent the key by then is closed: only replicas have any business here."""

MAX_KEY_BYTES = 256

MAX_UNAUTHENTICATED = 256
"""Connections at a time that have not sent the key yet."""

CONNECT_TIMEOUT_S = 2.0

RECONNECT_S = 30.0
"""A caller that could not be reached is not tried again before this, and then while requests use their calls."""

MAX_UNSENT_BYTES = 64 * 2**20
"""What may wait for a caller that does not read. Beyond it, the connection and all its requests are given up."""

ACK_TIMEOUT_S = 30
"""A connection whose other end acknowledges nothing for this long is lost: a network may drop one silently."""

_Endpoint = tuple[str, int, str]
"""Where a caller listens: host, port, key."""

_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """A request of the caller."""

    def take(self, item: bytes) -> None: ...

    def disconnected(self) -> None:
        """The connection that brought the first items is lost, so no more will come."""
        ...


class EventServer:
    """The caller's end. It listens on this machine's address in the cluster, for replicas that know the key.

    Without an address it does not listen, and all items come by the calls.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._key = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._numbers = itertools.count()
        self._receivers: dict[int, Receiver] = {}
        self._connections: set[_ServerConnection] = set()

    async def open(self) -> None:
        if not self._host:
            return
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _ServerConnection(self), self._host, 0, backlog=1024)
        except OSError as exc:
            _log.warning("cannot listen on %s (%r): events go through Ray instead", self._host, exc)
            return
        self._port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.transport.close()

    @contextlib.contextmanager
    def expect(self, receiver: Receiver) -> Iterator[ReplyTo | None]:
        """Where the replica is to send the items of this request, to be named in its call; None if nobody listens."""
        if self._server is None:
            yield None
            return
        number = next(self._numbers)
        self._receivers[number] = receiver
        try:
            yield ReplyTo(self._host, self._port, self._key, number)
        finally:
            del self._receivers[number]
            for connection in self._connections:
                connection.numbers.discard(number)

    # Called by the connections

    def is_key(self, line: bytes) -> bool:
        return hmac.compare_digest(line, self._key.encode())

    def add(self, connection: _ServerConnection) -> bool:
        """Whether there is room for one more that has not sent the key."""
        self._connections.add(connection)
        return sum(not other.authenticated for other in self._connections) <= MAX_UNAUTHENTICATED

    def dispatch(self, line: bytes, connection: _ServerConnection) -> None:
        """Hand a line's item to its request. What comes for a request that has ended is dropped."""
        digits, _, item = line.partition(b" ")
        number = int(digits)
        receiver = self._receivers.get(number)
        if receiver is not None:
            connection.numbers.add(number)
            receiver.take(item)

    def remove(self, connection: _ServerConnection) -> None:
        self._connections.discard(connection)
        for number in connection.numbers & self._receivers.keys():
            self._receivers[number].disconnected()


class _ServerConnection(asyncio.Protocol):
    """One connection from a replica."""

    transport: asyncio.Transport

    def __init__(self, server: EventServer) -> None:
        self.numbers: set[int] = set()
        """Requests that have had items by this connection."""
        self.authenticated = False
        self._server = server
        self._partial_line: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = _with_keepalive(transport)
        if self._server.add(self):
            self._timer = asyncio.get_running_loop().call_later(KEY_TIMEOUT_S, self._expire)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        first, *more = data.split(b"\n")
        self._partial_line.append(first)
        for following in more:
            if not self._take_line(b"".join(self._partial_line)):
                return
            self._partial_line = [following]
        if not self.authenticated and sum(map(len, self._partial_line)) > MAX_KEY_BYTES:
            self.transport.abort()

    def _take_line(self, line: bytes) -> bool:
        """Whether to go on."""
        if self.authenticated:
            self._server.dispatch(line, self)
            return True
        if not self._server.is_key(line):
            self.transport.abort()
            return False
        self.authenticated = True
        self.transport.write(b"\n")
        return True

    def _expire(self) -> None:
        if not self.authenticated:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.remove(self)


class EventClient:
    """The replica's end: a connection to each caller that has named its address."""

    def __init__(self) -> None:
        self._connections: dict[_Endpoint, asyncio.Task[_ClientConnection | None]] = {}
        self._unreachable: dict[_Endpoint, float] = {}
        """Callers that could not be reached, and until when they are not tried again."""

    async def route(self, reply_to: ReplyTo | None) -> Route | None:
        """To the request that a call names. None if it names none, or if its caller cannot be reached now."""
        if reply_to is None:
            return None
        endpoint = (reply_to.host, reply_to.port, reply_to.key)
        retry_at = self._unreachable.get(endpoint)
        if endpoint not in self._connections:
            if retry_at is not None and time.monotonic() < retry_at:
                return None
            self._connections[endpoint] = asyncio.create_task(self._connect(endpoint))
        connecting = self._connections[endpoint]
        if retry_at is not None and not connecting.done():
            return None
        connection = await asyncio.shield(connecting)
        return Route(connection, reply_to.number) if connection is not None else None

    async def _connect(self, endpoint: _Endpoint) -> _ClientConnection | None:
        """It stays in `_connections` until it is lost; if it fails, it is gone from there when this returns."""
        host, port, key = endpoint
        connection: _ClientConnection | None = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(lambda: _ClientConnection(self, endpoint), host, port)
                await connection.authenticate(key)
        except Exception as exc:  # noqa: BLE001 - whatever keeps it from being reached, the calls can carry the items
            _log.warning("no connection to the caller at %s (%r): its events go through Ray instead", host, exc)
            if connection is not None:
                connection.transport.abort()
            now = time.monotonic()
            self._unreachable = {other: at for other, at in self._unreachable.items() if at > now - RECONNECT_S}
            self._unreachable[endpoint] = now + RECONNECT_S
            self.remove(endpoint)
            return None
        self._unreachable.pop(endpoint, None)
        return connection

    def remove(self, endpoint: _Endpoint) -> None:
        self._connections.pop(endpoint, None)

    def close(self) -> None:
        """What has been given to `send` still goes out."""
        connections, self._connections = list(self._connections.values()), {}
        for connecting in connections:
            if not connecting.done():
                connecting.cancel()
            elif not connecting.cancelled() and (connection := connecting.result()) is not None:
                connection.close()


class _ClientConnection(asyncio.Protocol):
    """One connection to a caller. What is sent within one turn of the event loop goes out in one write."""

    transport: asyncio.Transport

    def __init__(self, client: EventClient, endpoint: _Endpoint) -> None:
        self._client = client
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._key_taken: asyncio.Future[None] = self._loop.create_future()
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = _with_keepalive(transport)

    async def authenticate(self, key: str) -> None:
        """Return once the other end has accepted the key."""
        self.send(key.encode())
        await self._key_taken

    def data_received(self, data: bytes) -> None:
        if not self._key_taken.done():
            self._key_taken.set_result(None)

    def send(self, line: bytes) -> bool:
        """Whether the connection still stands."""
        if not self._lines:
            self._loop.call_soon(self._flush)
        self._lines.append(line)
        return not self._lost

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if self._lost or not lines:
            return
        self.transport.write(b"\n".join([*lines, b""]))
        if self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            _log.warning("dropping a caller that does not read: more than %d bytes wait for it", MAX_UNSENT_BYTES)
            self.transport.abort()

    def close(self) -> None:
        self._flush()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self._key_taken.done():
            self._key_taken.set_exception(ConnectionError("the caller closed the connection before it took the key"))
        self._client.remove(self._endpoint)


class Route:
    """Where the items of one request go."""

    def __init__(self, connection: _ClientConnection, number: int) -> None:
        self._connection = connection
        self._number = b"%d " % number

    def send(self, item: bytes) -> bool:
        """Whether the connection still stands."""
        return self._connection.send(self._number + item)


def _with_keepalive(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Set the time after which a connection that carries nothing any more counts as lost."""
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", ACK_TIMEOUT_S // 2),
        ("TCP_KEEPINTVL", ACK_TIMEOUT_S // 6),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", ACK_TIMEOUT_S * 1000),
    ):
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return cast("asyncio.Transport", transport)  # uvloop's, which Serve runs on, is not a subclass of it
