"""What llama.cpp's server is asked: JSON questions, and answers that stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.http.address import Address
from drivetrain.http.events import DONE, EventParser
from drivetrain.http.parser import AnswerParser
from drivetrain.http.push import Take, pushed
from drivetrain.http.spare import SpareSockets

MAX_EVENT_BYTES = 2**28

_JSON = json.JSONDecoder()

Hear = Callable[[dict[str, Any]], bool]
"""Takes one event of a stream, on the event loop; True if that is enough."""


class ChildConnection:
    """Where the server listens and the key that it wants. One connection a call, by one of `sockets` if there are."""

    def __init__(self, host: str, port: int, key: str, sockets: SpareSockets | None = None) -> None:
        self._address = Address(False, host, port, "")
        self._sockets = sockets or SpareSockets(0)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer. Raises `ServerRefused` for any status but 200, `OSError` or `Broken` without one."""
        found = bytearray()

        def take(answer: AnswerParser, part: bytes) -> bool:
            found.extend(part)
            return False

        await self._ask(method, path, body, take, found)
        return json.loads(found)

    async def follow(self, path: str, body: Mapping[str, Any], hear: Hear) -> None:
        """Hands on the events of the answer as they come, until `hear` has enough or the answer is over.

        Raises what `hear` raises, and `ServerRefused` for an error in the middle of the answer.
        """
        events, refusal = EventParser(MAX_EVENT_BYTES), bytearray()

        def take(answer: AnswerParser, part: bytes) -> bool:
            if answer.status != 200:
                refusal.extend(part)
                return False
            for name, data in events.feed(part):  # noqa: SIM110 - a generator would cost as much as the rest
                if data != DONE and hear(_event(name, data)):
                    return True
            return False

        await self._ask("POST", path, body, take, refusal)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, take: Take, found: bytearray) -> None:
        """`found` is what `take` keeps of an answer with a status other than 200."""
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        sock = self._sockets.take()
        try:
            answer = await pushed(self._address, method, path, self._headers, data, take, sock=sock)
        finally:
            asyncio.get_running_loop().call_soon(self._sockets.restock)  # after the call that closes this one
        if answer.status != 200:
            raise ServerRefused.parse(answer.status, bytes(found))


def _event(name: bytes, data: bytes) -> dict[str, Any]:
    event: dict[str, Any] = _JSON.raw_decode(data.decode())[0]  # half the work of `json.loads`
    if name == b"error":
        raise ServerRefused.parse(500, json.dumps({"error": event}).encode())
    if "error" in event:
        raise ServerRefused.parse(500, data)
    return event
