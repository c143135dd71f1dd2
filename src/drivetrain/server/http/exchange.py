"""One HTTP request and the way back to its client. Only this module knows whether the client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from drivetrain.server.counts import GONE_KEY

BODY_EXTENSION = "drivetrain.body"
"""The extension in a request's scope with which our connections go beyond ASGI: a `WriteBody`."""

WriteBody = Callable[[bytes], bool]
"""Sends one more part of a streaming body at once, after the head has been sent.

Returns False, having taken nothing, if the client reads too slowly or has left, or the body has not begun or is over.
Then use ASGI's `send`, which waits.
"""


class Exchange(Request):
    """A Starlette request, with the means to answer it. `started`: the head of the answer has been sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive)
        self._transmit = send
        self._write_body: WriteBody | None = scope.get("extensions", {}).get(BODY_EXTENSION)
        self._complete = False
        self.started = False

    async def take_body(self) -> bytes:
        """The body, which is not kept any longer: the answer may take long."""
        data, self._body = await self.body(), b""
        return data

    async def send(self, message: Message) -> None:
        """ASGI's `send`."""
        self.started = True
        self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._transmit(message)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer that comes in parts."""
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send a part, waiting for a client that reads slowly."""
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})

    def write_now(self, data: bytes) -> bool:
        """Send a part in this very call, or return False, having taken nothing."""
        return self._write_body is not None and self._write_body(data)

    @asynccontextmanager
    async def while_client_stays(self) -> AsyncIterator[None]:
        """If the client leaves, the block is cancelled, and so frees what it holds. Read the body first."""
        task = asyncio.current_task()
        assert task is not None
        listener = asyncio.create_task(self._cancel_when_gone(task), name="drivetrain-listen")
        try:
            yield
        except asyncio.CancelledError:
            if GONE_KEY not in self.scope or task.uncancel():
                raise
        finally:
            listener.cancel()

    async def _cancel_when_gone(self, task: asyncio.Task[object]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if not self._complete:
            self.scope[GONE_KEY] = True
            task.cancel()
