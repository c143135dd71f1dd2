"""Completions that are asked for in one moment begin in one step.

When llama.cpp is idle, it begins a step with whom it has, mostly with the first alone, and all others wait for that
step. So it gets a step of one token first, and whoever is there at its end is in the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

from drivetrain.engines.llamacpp.errors import ServerRefused

LONGEST_S = 0.5
"""For which others wait for an opening at the most; it takes some milliseconds."""

Body = Mapping[str, Any]
Heard = Callable[[dict[str, Any]], bool]
First = Callable[[], Body]
"""Makes a completion of one token that takes nothing from the one that it stands before."""


class Held(Protocol):
    """A request on its connection."""

    def write(self, *, but: int = 0) -> None:
        """All that has not been written yet, but for some bytes at its end."""
        ...


class Together:
    """`ask` asks llama.cpp for a completion, and calls with the first event of it. All on one event loop."""

    def __init__(self, ask: Callable[[Body, Heard], Awaitable[None]]) -> None:
        self._ask = ask
        self._num_running = 0
        self._come: list[tuple[Held, First | None]] = []
        self._openings: set[asyncio.Task[None]] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around each completion, from before it is connected until its end."""
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def add(self, held: Held, first: First | None) -> None:
        """One that is connected, and the step that may be taken before it."""
        if not self._come:
            asyncio.get_running_loop().call_soon(self._go)
        self._come.append((held, first))

    def _go(self) -> None:
        """Those who join others that run already wait for the end of a step anyway."""
        come, self._come = self._come, []
        first = next((first for _, first in come if first is not None), None)
        if first is None or not 1 < len(come) == self._num_running:
            for held, _ in come:
                held.write()
            return
        for held, _ in come:
            held.write(but=1)  # so that only a byte is left to be read when it begins
        self._openings.add(asyncio.create_task(self._open(first(), [held for held, _ in come])))

    async def _open(self, first: Body, come: list[Held]) -> None:
        """They go on with the first word of it, or with its failure, which is not theirs."""

        def go_on() -> None:
            for held in come:
                held.write()
            come.clear()

        def begun(event: dict[str, Any]) -> bool:
            go_on()
            progress = event.get("prompt_progress")
            more = progress is not None and int(progress["cache"]) + 1 < int(progress["total"])
            return more or bool(event["stop"])  # where less was known than we thought, it is left

        try:
            with suppress(OSError, EOFError, ValueError, ServerRefused):  # a timeout is an OSError
                async with asyncio.timeout(LONGEST_S):
                    await self._ask(first, begun)
        finally:
            go_on()
            self._openings.discard(cast("asyncio.Task[None]", asyncio.current_task()))
