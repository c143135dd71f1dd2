"""Parts of a body, sent from where nothing can wait: in the call that brought a token, without a task to wake."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from typing import Any

from starlette.types import Scope, Send

GIVE_KEY = "drivetrain.give"
"""Where the state of a request has a reference to the short way of its connection for parts of a body, if it knows one:
it takes a part and says whether that was sent."""


class Sender:
    """`give` sends at once; where the transport is full it returns False, and `drained` waits until it is not."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        refer: Callable[[], Callable[[bytes], bool] | None] = scope.get("state", {}).get(GIVE_KEY, lambda: None)
        self._short = refer()
        self._waits: tuple[Generator[Any, Any, None], Any] | None = None

    def give(self, data: bytes) -> bool:
        """Whether more can be given. Nothing may be before `drained` otherwise."""
        if self._short is not None and self._short(data):
            return True
        sending = self._send({"type": "http.response.body", "body": data, "more_body": True}).__await__()
        try:
            self._waits = (sending, next(sending))
        except StopIteration:
            return True
        return False

    async def drained(self) -> None:
        waits, self._waits = self._waits, None
        if waits is not None:
            await _rest_of(*waits)


@types.coroutine
def _rest_of(sending: Generator[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Go on with what was begun outside of any task, and stopped where it had to wait for a future."""
    try:
        yield waits_for
    except BaseException:
        sending.close()
        raise
    yield from sending
