"""One HTTP request and the way back to its client. The only place that knows whether there still is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from drivetrain.server.counts import GONE_KEY

BODY_EXTENSION = "drivetrain.body"
"""What our connections can do beyond ASGI, offered in a request's scope: a `WriteBody`."""

WriteBody = Callable[[bytes], bool]
"""Sends one more part of a streaming body whose start has been sent, in the very call.

False, and nothing was taken, where the client reads too slowly, has gone, or the answer is not in its body: ASGI's own
`send` is the way then, which waits.
"""


class Exchange(Request):
    """A request as Starlette reads it, and what is sent for it. `started`: the head of the answer is on its way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive)
        self._transmit = send
        self._door: WriteBody | None = scope.get("extensions", {}).get(BODY_EXTENSION)
        self._complete = False
        self.started = False

    async def take_body(self) -> bytes:
        """Its body, which is not kept for as long as the answer takes."""
        data, self._body = await self.body(), b""
        return data

    async def send(self, message: Message) -> None:
        """As ASGI's own."""
        self.started = True
        self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._transmit(message)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer that comes in parts."""
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """A part of it, once there is room: a client that reads slowly is waited for."""
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})

    def write_now(self, data: bytes) -> bool:
        """The same in this very call; False where that cannot be, and nothing was taken."""
        return self._door is not None and self._door(data)

    @asynccontextmanager
    async def while_client_stays(self) -> AsyncIterator[None]:
        """A client that leaves cancels what is inside, which frees whatever it holds. The body has been read before."""
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
