"""HTTP/1.1 for requests that a good client would not send too: any bytes, any length, and leaving in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.http.address import Address
from drivetrain.tools.conform.exchange import Exchange

CONNECT_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 2**20
MAX_REPLY_BYTES = 64 * 2**20
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class Broken(Exception):
    """No whole answer: it broke off, is no HTTP, or took too long. The message says which."""


class Unreachable(Broken):
    """No connection."""


@dataclass(frozen=True, slots=True)
class Client:
    """One connection a request. `timeout_s` is for the whole of one answer."""

    address: Address
    key: str
    timeout_s: float

    async def send(self, exchange: Exchange, timeout_s: float | None = None) -> None:
        """Send it and read all of the answer into it. Raises `Broken`."""
        async with self.begun(exchange, timeout_s) as parts:
            async for part in parts:
                exchange.reply += part
                if len(exchange.reply) > MAX_REPLY_BYTES:
                    raise Broken("the answer is larger than 64 MiB")
            exchange.whole = True

    @contextlib.asynccontextmanager
    async def begun(self, exchange: Exchange, timeout_s: float | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """Sent, and answered up to the headers; gives the body as it comes. Leaving closes the connection."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        began = time.perf_counter()
        try:
            async with asyncio.timeout(limit):
                async with self._connected() as (reader, writer):
                    writer.write(self._spelled(exchange))
                    with contextlib.suppress(ConnectionError):  # refused while we were still sending: it may say why
                        await writer.drain()
                    with _broken_reads():
                        await _read_head(reader, exchange)
                    async with contextlib.aclosing(_body(reader, exchange)) as parts:
                        yield parts
        except TimeoutError:
            raise Broken(f"no whole answer to {exchange.said} within {limit:g} s") from None
        except Broken as exc:
            if isinstance(exc, Unreachable):
                raise
            raise Broken(f"{exchange.said}: {exc}") from exc
        finally:
            exchange.took_s = time.perf_counter() - began

    @contextlib.asynccontextmanager
    async def unanswered(self, exchange: Exchange) -> AsyncIterator[None]:
        """Sent, and nothing read. Leaving closes the connection."""
        async with self._connected() as (_, writer):
            with _broken_reads():
                writer.write(self._spelled(exchange))
                await writer.drain()
            yield

    def _spelled(self, exchange: Exchange) -> bytes:
        fields = {"host": self.address.authority, "connection": "close", "accept": "*/*"}
        if exchange.body:
            fields["content-type"] = "application/json"
        fields["content-length"] = str(len(exchange.body))
        fields.update(exchange.headers)
        lines = [f"{exchange.method} {exchange.path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + exchange.body

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        address = self.address
        context = ssl.create_default_context() if address.secure else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=context, limit=MAX_LINE_BYTES
                )
        except (OSError, UnicodeError) as exc:  # TimeoutError is an OSError
            reason = getattr(exc, "strerror", None) or str(exc) or "it does not answer"
            raise Unreachable(f"{address} cannot be reached: {reason}") from exc
        try:
            yield reader, writer
        finally:
            if address.secure:  # the other side may never say goodbye
                writer.transport.abort()
            else:
                writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def authorized(key: str, headers: Mapping[str, str]) -> dict[str, str]:
    return {**({"authorization": f"Bearer {key}"} if key else {}), **headers}


def encoded(body: Any) -> bytes:
    """Bytes as they are; nothing as nothing; all else as JSON, in ASCII."""
    if isinstance(body, bytes):
        return body
    return b"" if body is None else json.dumps(body).encode()


async def _read_head(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    while True:
        status = _STATUS.match(await reader.readline())
        if status is None:
            raise Broken("what came back is not HTTP")
        exchange.status = int(status[1])
        while (line := (await reader.readline()).decode("latin-1").rstrip("\r\n")) != "":
            name, _, value = line.partition(":")
            exchange.reply_headers[name.strip().lower()] = value.strip()
        if exchange.status >= 200:  # before it may come a «continue»
            return


async def _body(reader: asyncio.StreamReader, exchange: Exchange) -> AsyncGenerator[bytes, None]:
    headers = exchange.reply_headers
    with _broken_reads():
        if exchange.method == "HEAD" or exchange.status in {204, 304}:
            return
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while size := _chunk_size(await reader.readline()):
                yield await reader.readexactly(size)
                await reader.readexactly(2)
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left > 0:
                data = await reader.read(min(left, 2**16))
                if not data:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(data)
                yield data
        else:
            while data := await reader.read(2**16):
                yield data


def _chunk_size(line: bytes) -> int:
    if not line:
        raise asyncio.IncompleteReadError(line, None)
    return int(line.partition(b";")[0], 16)


@contextlib.contextmanager
def _broken_reads() -> Iterator[None]:
    try:
        yield
    except asyncio.IncompleteReadError as exc:
        raise Broken("the connection was closed in the middle of the answer") from exc
    except OSError as exc:
        if isinstance(exc, TimeoutError):
            raise
        raise Broken(f"the connection broke: {exc.strerror or type(exc).__name__}") from exc
    except ValueError as exc:  # a length that is none, a line that does not end
        raise Broken("what came back is not HTTP") from exc
