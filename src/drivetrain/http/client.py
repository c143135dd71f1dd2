"""Asks another server on the event loop: a connection a request, closed at once by whoever leaves the answer early.

    async with connected(address, timeout_s=10.0) as connection:
        answer = await connection.ask("GET", "/v1/models", {})
        async for part in answer.parts():
            ...

Until `connected` has a connection it raises `OSError`, `TimeoutError` included: nothing has been sent then. What comes
afterwards raises `Broken`. Nothing here bounds the time of an answer; that is what `asyncio.timeout` is for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping

from drivetrain.http.address import Address
from drivetrain.http.parser import AnswerParser, CutOff, TooLong, spelled

_READ_BYTES = 2**16


class HttpAnswer:
    """The head has come, the body follows. `headers` have names in small letters, `asked_at` is the loop's time."""

    def __init__(self, parser: AnswerParser, begun: bytes, reader: asyncio.StreamReader, asked_at: float) -> None:
        self.status = parser.status
        self.headers: Mapping[str, str] = parser.headers
        self.asked_at = asked_at
        self._parser = parser
        self._begun = begun
        self._reader = reader

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, once. Raises `Broken` where it ends early."""
        parser, data = self._parser, self._begun
        while True:
            for part in parser.feed(data):
                yield part
            if parser.over:
                return
            data = await _read(self._reader)
            if not data:
                parser.end()

    async def whole(self, limit: int) -> bytes:
        """Raises `TooLong` for a body of more than `limit` bytes."""
        data = bytearray()
        async for part in self.parts():
            data += part
            if len(data) > limit:
                raise TooLong("an answer is far too long")
        return bytes(data)


class HttpConnection:
    """Open, for one request."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer
        self._opened_at = asyncio.get_running_loop().time()

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpAnswer:
        """`path` is from the root of the host. Returns with the head of the answer. Raises `Broken`."""
        await self.send(spelled(self._address, method, path, headers, body))
        return await self.answer(method)

    async def send(self, request: bytes) -> None:
        """Any bytes, as they are. Returns once nearly all have been taken. Raises `Broken`."""
        self._writer.write(request)
        with broken_transfer():
            await self._writer.drain()

    async def answer(self, method: str) -> HttpAnswer:
        """To what was sent, which was of this method. Raises `Broken`."""
        parser = AnswerParser(method)
        begun: bytes | None = None
        while begun is None:
            data = await _read(self._reader)
            if not data:
                parser.end()
            begun = parser.head(data)
        return HttpAnswer(parser, begun, self._reader, self._opened_at)


@contextlib.asynccontextmanager
async def connected(address: Address, *, timeout_s: float) -> AsyncIterator[HttpConnection]:
    """Leaving closes the connection, whatever ends it. Raises `OSError` where there is none."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=address.tls, limit=_READ_BYTES
            )
    except UnicodeError as exc:
        raise OSError(f"{address.host!r} is no name of a host") from exc
    try:
        yield HttpConnection(address, reader, writer)
    finally:
        writer.transport.abort()  # the other side feels it at once; with TLS it may never say goodbye
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.contextmanager
def broken_transfer() -> Iterator[None]:
    """A connection that breaks once it is open is `CutOff`, and no `OSError`; a time that is up stays what it is."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as exc:
        raise CutOff(f"the connection broke: {exc.strerror or type(exc).__name__}") from exc


async def _read(reader: asyncio.StreamReader) -> bytes:
    with broken_transfer():
        return await reader.read(_READ_BYTES)
