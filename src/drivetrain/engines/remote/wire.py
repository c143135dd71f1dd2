"""HTTP/1.1 to one upstream: a connection a request, closed at once by whoever leaves its answer early."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from drivetrain.address import Address
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused, TooLong, Unreadable

MAX_BODY_BYTES = 2**24
MAX_HEADERS = 200
_MAX_LINE_BYTES = 2**16
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In seconds. `first_s` is for a head and a first event together: prompts are computed then. `idle_s` is for each
    further one."""

    connect_s: float = 10.0
    ask_s: float = 30.0
    first_s: float = 600.0
    idle_s: float = 120.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Timeouts:
        """Those that are settings; the others as they are."""
        named = {"connect_timeout_s": "connect_s", "first_timeout_s": "first_s", "silence_timeout_s": "idle_s"}
        return cls(**{ours: float(options[name]) for name, ours in named.items() if name in options})


class Answer:
    """The head has come, the body follows. `headers` have names in small letters, `asked_at` is the loop's time."""

    def __init__(self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader, asked_at: float) -> None:
        self.status = status
        self.headers = headers
        self.asked_at = asked_at
        self._reader = reader

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises `Broken` where it ends early."""
        with _broken_reads():
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                while size := _chunk_size(await self._reader.readline()):
                    left = size
                    while left:  # a chunk may be of any size, and its beginning is news
                        data = await self._reader.read(min(left, _MAX_LINE_BYTES))
                        if not data:
                            raise asyncio.IncompleteReadError(b"", left)
                        left -= len(data)
                        yield data
                    await self._reader.readexactly(2)
            elif (length := self.headers.get("content-length")) is not None:
                left = int(length)
                while left > 0:
                    data = await self._reader.read(min(left, _MAX_LINE_BYTES))
                    if not data:
                        raise asyncio.IncompleteReadError(b"", left)
                    left -= len(data)
                    yield data
            else:
                while data := await self._reader.read(_MAX_LINE_BYTES):
                    yield data

    async def whole(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Raises `TooLong` for a body of more than `limit` bytes."""
        data = bytearray()
        async for part in self.parts():
            data += part
            if len(data) > limit:
                raise TooLong("an answer is far too long")
        return bytes(data)


@contextlib.asynccontextmanager
async def asked(
    address: Address,
    method: str,
    path: str,
    key: Key,
    body: Mapping[str, Any] | None = None,
    *,
    timeouts: Timeouts,
    head_s: float,
    trace_context: Mapping[str, str] | None = None,
) -> AsyncIterator[Answer]:
    """`path` is from the root of the host. Leaving closes the connection, whatever ends it.

    Raises `OSError` (`TimeoutError` included) where there is no connection, `Broken` for what is no HTTP.
    """
    context = _tls() if address.secure else None
    try:
        async with asyncio.timeout(timeouts.connect_s):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, limit=_MAX_LINE_BYTES
            )
    except UnicodeError as exc:
        raise OSError("the host's name is none") from exc
    asked_at = asyncio.get_running_loop().time()
    try:
        try:
            async with asyncio.timeout_at(asked_at + head_s):
                writer.write(_request(address, method, path, key, body, trace_context))
                with _broken_reads():
                    await writer.drain()
                    answer = await _head(reader, asked_at)
        except TimeoutError as exc:
            raise Broken(f"it did not answer within {head_s:g} seconds") from exc
        yield answer
    finally:
        writer.transport.abort()  # the upstream feels it at once, and its slot is free


async def ask_json(
    address: Address,
    method: str,
    path: str,
    key: Key,
    body: Mapping[str, Any] | None = None,
    *,
    timeouts: Timeouts,
    trace_context: Mapping[str, str] | None = None,
) -> Any:
    """Raises `Refused` for any status but 200, `Unreadable` for what is no JSON, and what `asked` raises."""
    try:
        async with (
            asyncio.timeout(timeouts.ask_s),
            asked(
                address, method, path, key, body, timeouts=timeouts, head_s=timeouts.ask_s, trace_context=trace_context
            ) as answer,
        ):
            data = await answer.whole()
    except TimeoutError as exc:
        raise Broken(f"it did not answer within {timeouts.ask_s:g} seconds") from exc
    if answer.status != 200:
        raise Refused.parse(answer.status, answer.headers, data, key)
    return parsed(data)


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Unreadable("what should be JSON is none") from exc


def _request(
    address: Address,
    method: str,
    path: str,
    key: Key,
    body: Mapping[str, Any] | None,
    trace_context: Mapping[str, str] | None,
) -> bytes:
    data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    fields = {
        "host": address.authority,
        "connection": "close",
        "accept": "text/event-stream, application/json",
        "content-type": "application/json",
        "content-length": str(len(data)),
        **(trace_context or {}),
        **key.headers,
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


async def _head(reader: asyncio.StreamReader, asked_at: float) -> Answer:
    status = _STATUS.match(await reader.readline())
    if status is None:
        raise Broken("what it says is no HTTP")
    headers: dict[str, str] = {}
    for _ in range(MAX_HEADERS):
        line = (await reader.readline()).decode("latin-1").rstrip("\r\n")
        if not line:
            return Answer(int(status[1]), headers, reader, asked_at)
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise Broken("its headers do not end")


def _chunk_size(line: bytes) -> int:
    if not line.endswith(b"\n"):
        raise asyncio.IncompleteReadError(line, None)
    return int(line.partition(b";")[0], 16)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextlib.contextmanager
def _broken_reads() -> Iterator[None]:
    try:
        yield
    except (asyncio.IncompleteReadError, ConnectionError) as exc:
        raise Broken("the connection was closed in the middle of the answer") from exc
    except ValueError as exc:  # a length that is none, a line that does not end
        raise Broken("what it says is no HTTP") from exc
