"""Threads for texts, so that whoever waits for a first token never waits behind anything but other first tokens.

Generation has threads of its own. What no answer waits for (counting tokens, decoding ids, the texts of embeddings) has
lanes: a thread each, with a bounded line in front of it. Long texts never keep short ones waiting, on either side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from drivetrain.core.errors import DrivetrainError, EngineFailed, NotReady, Overloaded
from drivetrain.core.tokenizer import Wanted

T = TypeVar("T")

LONG_CHARS = 20_000
"""Of characters or ids. To split so many takes about 20 ms."""

RETRY_AFTER_S = 5.0

COMPUTING = 2
"""Threads that prepare requests. More would only take the interpreter from one another."""

ASKING = 16
"""The same where another process or machine splits the texts, and the threads wait for it."""


class Lane:
    """All methods belong to one event loop."""

    def __init__(self, name: str, *, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._thread = _threads(1, name)
        self._held = 0

    @property
    def held(self) -> int:
        """Callers that are worked for or wait."""
        return self._held

    async def run(self, pieces: Iterable[Callable[[], T]], *, admitted: bool = False) -> list[T]:
        """What each piece gives. After each one it is another caller's turn, and one that has left is not worked for.

        Raises `Overloaded` where the line is full. `admitted`: the caller has a slot, and so is one of few.
        """
        if self._held > self._max_waiting and not admitted:
            raise Overloaded(
                f"the worker is full: {self._held - 1} texts are waiting to be tokenized or put together; "
                "try again shortly",
                retry_after_s=RETRY_AFTER_S,
            )
        self._held += 1
        try:
            return [await on_thread(self._thread, piece) for piece in pieces]
        finally:
            self._held -= 1

    def close(self) -> None:
        """Blocks until what is under way is done. What waits ends as `NotReady`."""
        self._thread.shutdown(cancel_futures=True)


class TextThreads:
    """All of a worker's, from its first engine to its last.

    `waits` is whether its tokenizer asks somebody else, for `at_once` requests at a time.
    """

    def __init__(self, *, waits: bool, at_once: int, max_waiting: int) -> None:
        num_prompts = max(COMPUTING, min(ASKING, at_once)) if waits else COMPUTING
        self.prompts = _threads(num_prompts, "prepare")
        self.long_prompts = _threads(1, "prepare-long")
        self.aside = Lane("aside", max_waiting=max_waiting)
        self.long_aside = Lane("aside-long", max_waiting=max_waiting)

    def for_prompt(self, chars: int) -> Executor:
        return self.long_prompts if chars > LONG_CHARS else self.prompts

    def lane(self, chars: int) -> Lane:
        return self.long_aside if chars > LONG_CHARS else self.aside

    def close(self) -> None:
        """Blocks until what is under way is done."""
        for lane in (self.aside, self.long_aside):
            lane.close()
        for threads in (self.prompts, self.long_prompts):
            threads.shutdown()


def _threads(number: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix=f"drivetrain-{name}")


async def on_thread(threads: Executor, work: Callable[[], T]) -> T:
    """Text work off the event loop. Whatever a tokenizer or template raises, a panic too, comes back typed."""
    wanted = Wanted()
    try:
        job = threads.submit(typed, wanted, work)
    except RuntimeError as exc:  # the threads are gone
        raise NotReady("the worker is stopped") from exc
    try:
        with wanted:  # who is cancelled here, leaves: the thread looks for that, and what is not begun is not begun
            return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        if job.cancelled() and not _is_cancelled():  # by `close`, not by who waits
            raise NotReady("the worker is stopped") from None
        raise
    finally:
        del job  # it has what was raised, which has this frame


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def typed(wanted: Wanted, work: Callable[[], T]) -> T:
    try:
        with wanted.here():
            return work()
    except DrivetrainError:
        raise
    except BaseException as exc:
        raise EngineFailed(f"the tokenizer failed on this text ({type(exc).__name__})") from exc
