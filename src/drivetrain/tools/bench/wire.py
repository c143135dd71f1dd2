"""HTTP/1.1 as a client of one request a connection: little to do for each event, and every broken answer told."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from drivetrain.http.address import Address

CONNECT_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 2**20
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class BrokenAnswer(Exception):
    """The other side ended early, or what it sent is no HTTP."""


class Connection:
    """Open, and nothing asked yet."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        """Send it, and read up to the body. Raises `BrokenAnswer` and `OSError`."""
        fields = {"host": self._address.authority, "connection": "close", **headers, "content-length": str(len(body))}
        lines = [f"{method} {self._address.path}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        with _broken_reads():
            await self._writer.drain()
            status = _STATUS.match(await self._reader.readline())
            if status is None:
                raise BrokenAnswer("the answer is not HTTP")
            found: dict[str, str] = {}
            while (line := (await self._reader.readline()).decode("latin-1").rstrip("\r\n")) != "":
                name, _, value = line.partition(":")
                found[name.strip().lower()] = value.strip()
        return Response(int(status[1]), found, self._reader)


@dataclass(frozen=True, slots=True)
class Response:
    """`headers` have names in small letters."""

    status: int
    headers: Mapping[str, str]
    reader: asyncio.StreamReader

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `BrokenAnswer` where it ends early."""
        with _broken_reads():
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                while size := _chunk_size(await self.reader.readline()):
                    yield await self.reader.readexactly(size)
                    await self.reader.readexactly(2)
            elif (length := self.headers.get("content-length")) is not None:
                yield await self.reader.readexactly(int(length))
            else:
                while data := await self.reader.read(2**16):
                    yield data

    async def lines(self) -> AsyncIterator[bytes]:
        """Each line of the body without its end."""
        rest = b""
        async for part in self.parts():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
            if len(rest) > MAX_LINE_BYTES:
                raise BrokenAnswer("a line of the answer does not end")
        if rest:
            yield rest

    async def whole(self, limit: int = MAX_LINE_BYTES) -> bytes:
        """The body, cut at about `limit` bytes."""
        data = b""
        async for part in self.parts():
            data += part
            if len(data) > limit:
                break
        return data


@contextlib.asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Connection]:
    """A connection that is closed at the end, whatever ends it. Raises `OSError` (`TimeoutError` included)."""
    context = _tls() if address.secure else None
    host, port = address.host, address.port
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=MAX_LINE_BYTES)
    except UnicodeError as exc:
        raise OSError(f"{host!r} is no name of a host") from exc
    try:
        yield Connection(address, reader, writer)
    finally:
        if address.secure:  # the other side may never say goodbye
            writer.transport.abort()
        else:
            writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _chunk_size(line: bytes) -> int:
    if not line:
        raise asyncio.IncompleteReadError(line, None)
    return int(line.partition(b";")[0], 16)


def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextlib.contextmanager
def _broken_reads() -> Iterator[None]:
    try:
        yield
    except asyncio.IncompleteReadError as exc:
        raise BrokenAnswer("the connection was closed in the middle of the answer") from exc
    except ValueError as exc:  # a length that is none, a line that does not end
        raise BrokenAnswer("the answer is not HTTP") from exc
