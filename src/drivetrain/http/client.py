"""Asks another server on the event loop: one connection per request, closed at once if the answer is left early.

    async with connected(address, timeout_s=10.0) as connection:
        answer = await connection.ask("GET", "/v1/models", {})
        async for part in answer.parts():
            ...

`connected` raises `OSError`, `TimeoutError` included, if it gets no connection: nothing has been sent then. Failures
after that raise `Broken`. Nothing here bounds how long an answer may take; use `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping

from drivetrain.http.address import Address
from drivetrain.http.events import is_event_stream
from drivetrain.http.parser import AnswerParser, CutOff, TooLong, spelled

_READ_BYTES = 2**16


class HttpAnswer:
    """The head has come, the body follows. Names in `headers` are lower case; `asked_at` is the loop's time."""

    def __init__(self, parser: AnswerParser, begun: bytes, reader: asyncio.StreamReader, asked_at: float) -> None:
        self.status = parser.status
        self.headers: Mapping[str, str] = parser.headers
        self.asked_at = asked_at
        self._parser = parser
        self._begun = begun
        self._reader = reader

    @property
    def is_stream(self) -> bool:
        return is_event_stream(self.headers.get("content-type", ""))

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, once. Raises `Broken` if it ends early."""
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
    """An open connection, for one request."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer
        self._opened_at = asyncio.get_running_loop().time()

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> HttpAnswer:
        """`path` is from the root of the host. Returns once the head of the answer has come. Raises `Broken`."""
        await self.send(spelled(self._address, method, path, headers, body))
        return await self.answer(method)

    async def send(self, request: bytes) -> None:
        """Send any bytes unchanged. Returns once nearly all have been sent. Raises `Broken`."""
        self._writer.write(request)
        with broken_transfer():
            await self._writer.drain()

    async def answer(self, method: str) -> HttpAnswer:
        """The answer to a request of this method, which has been sent. Raises `Broken`."""
        parser = AnswerParser(method)
        begun: bytes | None = None
        while begun is None:
            data = await _read(self._reader)
            if not data:
                parser.end()
            begun = parser.head(data)
        return HttpAnswer(parser, begun, self._reader, self._opened_at)


def _refused(exc: OSError) -> bool:
    """asyncio joins the errors of a host's addresses (`localhost` often has two) in one that has no number."""
    return exc.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(exc)


@contextlib.asynccontextmanager
async def connected(address: Address, *, timeout_s: float) -> AsyncIterator[HttpConnection]:
    """Leaving the block closes the connection. Raises `OSError` if it cannot be made."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=address.tls, limit=_READ_BYTES
            )
    except UnicodeError as exc:
        raise OSError(f"{address.host!r} is no name of a host") from exc
    except OSError as exc:
        if _refused(exc):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused") from exc
        raise
    try:
        yield HttpConnection(address, reader, writer)
    finally:
        writer.transport.abort()  # the other side notices at once; with TLS, a clean close may never be answered
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.contextmanager
def broken_transfer() -> Iterator[None]:
    """Turns the `OSError` of an open connection that breaks into `CutOff`. A `TimeoutError` passes through."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as exc:
        raise CutOff(f"the connection broke: {exc.strerror or type(exc).__name__}") from exc


async def _read(reader: asyncio.StreamReader) -> bytes:
    with broken_transfer():
        return await reader.read(_READ_BYTES)
