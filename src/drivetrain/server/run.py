"""From a bound socket to a clean exit: serve while models load, drain on the first signal, leave on the second."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from starlette.types import ASGIApp
from uvicorn import Config, Server

from drivetrain.core.errors import InvalidSetting
from drivetrain.http.address import url_of_listener
from drivetrain.server.http.acceptor import Acceptor
from drivetrain.server.http.connection import connection_class
from drivetrain.server.http.file_limit import raise_limit, warn_if_few
from drivetrain.server.settings import ServerSettings

BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted."""

CLOSING_S = 5.0
"""Seconds to write what is left once the models have drained."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(settings: ServerSettings) -> socket.socket:
    """Bind the address first, because loading a model can take minutes. Raises `InvalidSetting`."""
    where = f"{settings.host} port {settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol too: asyncio sends small pieces at once, as a stream needs, only where it is named.
        sock = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise InvalidSetting(f"cannot listen on {where}: {exc.strerror}", param="host") from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:
            raise InvalidSetting(f"{where} is in use; choose another one with --port", param="port") from exc
        raise InvalidSetting(f"cannot listen on {where}: {exc.strerror}", param="host") from exc
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> str:
    """The URL at which this machine can reach a bound socket."""
    host, port = sock.getsockname()[:2]
    return url_of_listener(host, port)


class HttpServer(Server):
    """Leaves signals alone, accepts by an `Acceptor`, and leaves no connection open at the end, whatever its client
    does."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._connection_class = connection_class(settings)
        config = Config(
            app,
            http=self._connection_class,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type] # a float works
            timeout_graceful_shutdown=CLOSING_S,  # type: ignore[arg-type] # a float works
            h11_max_incomplete_event_size=settings.max_header_bytes,
        )
        super().__init__(config)
        self._most = settings.max_connections
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        make = partial(self._connection_class, self.config, self.server_state, self.lifespan.state)
        self._acceptors = [Acceptor(sock, make, self.server_state.connections, self._most) for sock in sockets or ()]
        for acceptor in self._acceptors:
            acceptor.start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Stop:
    """A request to stop the server. Call `request` from any thread."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def request(self) -> None:
        self._loop.call_soon_threadsafe(self._requested.set)

    async def wait(self) -> None:
        await self._requested.wait()

    @contextlib.contextmanager
    def on_signals(self, leave: Callable[[int], Any] = os._exit) -> Iterator[None]:
        """While entered, the first SIGINT or SIGTERM requests the stop and the second ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._requested.is_set() or handled:
                leave(128 + number)
            handled.append(number)
            self.request()

        handled: list[int] = []
        taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, handle) for number in taken}
        try:
            yield
        finally:
            for number, before in previous.items():
                signal.signal(number, signal.SIG_DFL if before is None else before)


async def serve(
    app: ASGIApp,
    settings: ServerSettings,
    sock: socket.socket,
    *,
    start: Callable[[], Awaitable[None]],
    drain: Callable[[], Awaitable[None]],
    stop: Stop,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `stop`. The server answers at once, and is ready when `start` has returned.

    If `start` fails, the server ends and the error is raised; if it still runs at the end, it is cancelled. The caller
    frees what `start` made. Raises `InvalidSetting` if the process may open too few files.
    """
    raise_limit()
    server = HttpServer(app, settings)
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="drivetrain-http")
    loading = asyncio.ensure_future(start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            warn_if_few(settings)
            ready()
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await drain()
        elif stopping.done():  # models that are already loaded may have requests
            loading.cancel()
            await asyncio.wait({loading})
            await drain()
    finally:
        for task in (loading, stopping):
            task.cancel()
        await asyncio.gather(loading, stopping, return_exceptions=True)
        server.should_exit = True
        await serving
