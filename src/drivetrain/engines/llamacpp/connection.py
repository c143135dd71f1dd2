"""A small HTTP/1.1 client for one server on this machine: JSON questions, and answers that stream.

One connection a call. Closing a stream resets the connection, which the server notices with the next thing that
it writes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from drivetrain.engines.llamacpp.errors import ServerRefused

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_LINE_LIMIT = 2**16


class Connection:
    """Where the server listens and the key that it wants."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host = host
        self._port = port
        self._key = key

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer. Raises `ServerRefused` for any status but 200, `OSError` or `EOFError` without one."""
        async with self._call(method, path, body) as response:
            return json.loads(await response.rest())

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[EventLines]:
        """The answer's `data:` lines while it is made. Leaving before its end resets the connection."""
        async with self._call("POST", path, body) as response:
            yield EventLines(response)

    @asynccontextmanager
    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[_Response]:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_LINE_LIMIT)
        _say_at_once(writer)
        try:
            writer.write(self._request(method, path, body))
            await writer.drain()
            response = _Response(reader)
            await response.begin()
            if response.status != 200:
                raise ServerRefused.parse(response.status, await response.rest())
            yield response
        finally:
            writer.transport.abort()

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + data


class EventLines:
    """The events of one streamed answer, as JSON."""

    def __init__(self, response: _Response) -> None:
        self._response = response
        self._lines: list[bytes] = []
        self._half = b""

    async def next(self) -> dict[str, Any] | None:
        """None when the answer is over. Raises `ServerRefused` for an error in the middle of it."""
        while True:
            while self._lines:
                line = self._lines.pop(0)
                if line.startswith((b"data:", b"error:")):
                    event = _event(line)
                    if event is not None:
                        return event
            chunk = await self._response.chunk()
            if chunk is None:
                return None
            *self._lines, self._half = (self._half + chunk).split(b"\n")


class _Response:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.status = 0
        self._length: int | None = None
        self._chunked = False
        self._over = False

    async def begin(self) -> None:
        status_line = await self._line()
        self.status = int(status_line.split(b" ", 2)[1])
        while line := await self._line():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                self._length = int(value)
            elif name.lower() == b"transfer-encoding":
                self._chunked = b"chunked" in value.lower()

    async def chunk(self) -> bytes | None:
        """The next piece of the body as it comes, None at its end."""
        if self._over:
            return None
        if not self._chunked:
            self._over = True
            return await (self._reader.readexactly(self._length) if self._length is not None else self._reader.read())
        length = int((await self._line()).partition(b";")[0], 16)
        data = await self._reader.readexactly(length + 2)
        if length == 0:
            self._over = True
            return None
        return data[:-2]

    async def rest(self) -> bytes:
        parts: list[bytes] = []
        while (chunk := await self.chunk()) is not None:
            parts.append(chunk)
        return b"".join(parts)

    async def _line(self) -> bytes:
        line = await self._reader.readuntil(b"\n")
        return line.rstrip(b"\r\n")


def _event(line: bytes) -> dict[str, Any] | None:
    text = line.partition(b":")[2].strip()
    if not text or text == b"[DONE]":
        return None
    event: dict[str, Any] = json.loads(text)
    if line.startswith(b"error:"):
        raise ServerRefused.parse(500, json.dumps({"error": event}).encode())
    if "error" in event:
        raise ServerRefused.parse(500, text)
    return event


def _say_at_once(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
