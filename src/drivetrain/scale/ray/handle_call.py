"""One call over a deployment handle that has one answer: its attempts, its deadline and its one ending."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Generic, TypeVar

from drivetrain.core.errors import DeadlineExceeded, DrivetrainError
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.errors import FOREIGN, LOST, translated
from drivetrain.worker.admission import ATTEMPTS

T = TypeVar("T")


class HandleCall(Generic[T]):
    """If its replica is lost it goes to another: nobody has seen anything of it."""

    def __init__(self, handle: Any, hint: type[T], method: str, arguments: Any, limit_s: float) -> None:
        self._handle = handle
        self._hint = hint
        self._method = method
        self._call = protocol.dumps(arguments)
        self._limit = asyncio.timeout(limit_s)
        self._error: DrivetrainError = DeadlineExceeded(f"there was no answer within {limit_s:g} seconds")
        """What it means if the time is over."""

    async def answer(self) -> T:
        """Only once. Cancelling it, or its deadline, cancels the call in the replica."""
        try:
            async with self._limit:
                for _ in range(ATTEMPTS - 1):
                    with contextlib.suppress(*LOST):
                        return await self._attempt()
                return await self._attempt()
        except TimeoutError:
            raise self._error from None
        except FOREIGN as exc:
            raise translated(exc) from exc

    def interrupt(self, error: DrivetrainError) -> None:
        """End it at once, without waiting, while `answer` is awaited. Does nothing if its time is over."""
        if not self._limit.expired():
            self._error = error
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _attempt(self) -> T:
        return protocol.load_answer(self._hint, await one_answer(self._handle, self._method, self._call))


async def one_answer(handle: Any, method: str, *call: bytes) -> bytes:
    response = getattr(handle, method).remote(*call)
    try:
        answer: bytes = await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    return answer
