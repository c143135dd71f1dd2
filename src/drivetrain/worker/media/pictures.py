"""Decoded images, within a bound on the pixels of all requests, released as soon as an engine has them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class Pictures:
    """The images of one request. Take what you need before `let_go`, which gives their room back.

    Garbage collection gives the room back too: a request can end at any moment while they are passed on.
    """

    def __init__(self, images: Iterable[Any] = (), room: PixelRoom | None = None, pixels: int = 0) -> None:
        self._images = list(images)
        self.hashes: list[str] = []
        """The sha256 of each file, if they were wanted. They are not let go of."""
        self._returned = weakref.finalize(self, room.give_back, pixels) if room is not None else None

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._images))

    def __contains__(self, image: object) -> bool:
        return image in self._images

    def add(self, image: Any) -> None:
        self._images.append(image)

    def let_go(self) -> None:
        """Idempotent, from any thread."""
        self._images.clear()
        if self._returned is not None:
            self._returned()


class PixelRoom:
    """First come, first served; a request that needs more than is left waits. Belongs to the loop it is made on."""

    def __init__(self, pixels: int) -> None:
        self._all = self._left = pixels
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._loop = asyncio.get_running_loop()

    @property
    def taken(self) -> int:
        return self._all - self._left

    async def take(self, pixels: int) -> Pictures:
        """Room for this many pixels, or all of it if there can never be that many."""
        pixels = min(pixels, self._all)
        if self._waiting or pixels > self._left:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((pixels, turn))
            try:
                await turn
            except asyncio.CancelledError:
                self._leave(pixels, turn)
                raise
        else:
            self._left -= pixels
        return Pictures(room=self, pixels=pixels)

    def give_back(self, pixels: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody is waiting
            self._loop.call_soon_threadsafe(self._return, pixels)

    def _leave(self, pixels: int, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():  # it had just got its room
            self._return(pixels)
            return
        self._waiting.remove((pixels, turn))
        self._return(0)

    def _return(self, pixels: int) -> None:
        self._left += pixels
        while self._waiting and self._waiting[0][0] <= self._left:
            wanted, turn = self._waiting.popleft()
            self._left -= wanted
            turn.set_result(None)
