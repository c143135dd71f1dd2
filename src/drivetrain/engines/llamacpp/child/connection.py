"""A small HTTP/1.1 client for one server on this machine: JSON questions, and answers that stream.

One connection a call. Leaving an answer before its end resets the connection, which the server notices with the
next thing that it writes. What arrives is handed on where it arrives, without waking a task for it: beside a model
that computes on every core, each switch costs more than the work.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.engines.llamacpp.child.answer import Answer
from drivetrain.engines.llamacpp.errors import ServerRefused

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_JSON = json.JSONDecoder()

Hear = Callable[[dict[str, Any]], bool]
"""Takes one event of a stream, on the event loop; True if that is enough."""


class Connection:
    """Where the server listens and the key that it wants."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host = host
        self._port = port
        self._key = key

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer. Raises `ServerRefused` for any status but 200, `OSError` or `EOFError` without one."""
        parts: list[bytes] = []

        def take(part: bytes) -> bool:
            parts.append(part)
            return False

        await self._exchange(self._request(method, path, body), take)
        return json.loads(b"".join(parts))

    async def follow(self, path: str, body: Mapping[str, Any], hear: Hear) -> None:
        """Hands on the events of the answer as they come, until `hear` has enough or the answer is over.

        Raises what `hear` raises, and `ServerRefused` for an error in the middle of the answer.
        """
        await self._exchange(self._request("POST", path, body), _Lines(hear))

    async def _exchange(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        loop = asyncio.get_running_loop()
        exchange = _Exchange(request, Answer(), take, loop.create_future())
        try:
            transport, _ = await loop.create_connection(lambda: exchange, sock=self._connecting())
        except BaseException:
            exchange.done.cancel()
            raise
        try:
            await exchange.done
        finally:
            transport.abort()

    def _connecting(self) -> socket.socket:
        """On the way to a server on this machine there is nothing to look up, and nothing to wait for."""
        sock = socket.socket()
        sock.setblocking(False)
        failed = sock.connect_ex((self._host, self._port))
        if failed not in {0, errno.EINPROGRESS}:
            sock.close()
            raise OSError(failed, os.strerror(failed))
        return sock

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + data


class _Exchange(asyncio.Protocol):
    """One request and its answer. `done` is settled once: by the end, by `take` having enough, or by an error."""

    def __init__(
        self, request: bytes, answer: Answer, take: Callable[[bytes], bool], done: asyncio.Future[None]
    ) -> None:
        self._request = request
        self._answer = answer
        self._take = take
        self._refusal: list[bytes] = []
        self.done = done

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as of any TCP connection
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        if not self.done.done():  # who asks may have left meanwhile
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        try:
            for part in self._answer.feed(data):
                if self._answer.status != 200:
                    self._refusal.append(part)
                elif self._take(part):
                    self._settle()
                    return
            if self._answer.over:
                self._settle(self._refused())
        except Exception as exc:  # noqa: BLE001 - it is raised where the answer is waited for
            self._settle(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer.ends_with_connection and exc is None:
            self._settle()
        else:
            self._settle(exc or EOFError("the answer broke off"))

    def _refused(self) -> ServerRefused | None:
        if self._answer.status == 200:
            return None
        return ServerRefused.parse(self._answer.status, b"".join(self._refusal))

    def _settle(self, error: Exception | None = None) -> None:
        """Whoever waits may have been cancelled by what was handed on."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Lines:
    """The events in the parts of a body: lines that begin with `data:`, or with `error:`."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._half = b""

    def __call__(self, part: bytes) -> bool:
        if not self._half and part.startswith(b"data: {") and part.find(b"\n") == len(part) - 2:  # as nearly always
            whole: dict[str, Any] = _JSON.raw_decode(part[6:].decode())[0]  # half the work of `json.loads`
            if "error" not in whole:
                return self._hear(whole)
        *lines, self._half = (self._half + part).split(b"\n")
        for line in lines:
            if line.startswith((b"data:", b"error:")):
                event = _event(line)
                if event is not None and self._hear(event):
                    return True
        return False


def _event(line: bytes) -> dict[str, Any] | None:
    text = line.partition(b":")[2].strip().decode()
    if not text or text == "[DONE]":
        return None
    event: dict[str, Any] = json.loads(text)
    if line.startswith(b"error:"):
        raise ServerRefused.parse(500, json.dumps({"error": event}).encode())
    if "error" in event:
        raise ServerRefused.parse(500, text.encode())
    return event
