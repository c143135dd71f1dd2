"""Threads for text work, so that a request waiting for its first token waits behind other such requests only.

Prompts to be answered have threads of their own. Everything else (counting tokens, decoding ids, tokenizing the texts
of embeddings) has lanes: one thread each, with a bounded queue. Long texts never keep short ones waiting in either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from drivetrain.core.errors import Overloaded
from drivetrain.text.grammar.trial import Trial
from drivetrain.worker.fair_lane import FairLane
from drivetrain.worker.off_loop import on_thread

T = TypeVar("T")

LONG_CHARS = 20_000
"""In characters or ids. Tokenizing this many takes about 20 ms."""

RETRY_AFTER_S = 5.0

COMPUTING = 2
"""Threads that prepare requests. More would only compete for the interpreter."""

ASKING = 16
"""The same if another process or machine tokenizes the texts, so that the threads mostly wait."""


class Lane:
    """Call all methods on one event loop."""

    def __init__(self, name: str, *, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._thread = _threads(1, name)
        self._held = 0

    @property
    def held(self) -> int:
        """Callers that are being served or waiting."""
        return self._held

    async def run(self, pieces: Iterable[Callable[[], T]], *, admitted: bool = False) -> list[T]:
        """The result of each piece. Callers take turns after each one; nothing is done for a caller that has left.

        Raises `Overloaded` if the queue is full, unless the caller is `admitted`: it has a slot, and so is one of few.
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
        """Blocks until the current piece is done. Waiting callers get `NotReady`."""
        self._thread.shutdown(cancel_futures=True)


class TextThreads:
    """All text threads of a worker, kept across engine restarts.

    `waits` says whether its tokenizer asks another process, for up to `at_once` requests at a time.
    `grammar_library` is as in `EngineInfo`.
    """

    def __init__(self, *, waits: bool, at_once: int, max_waiting: int, grammar_library: Path | None = None) -> None:
        num_prompts = max(COMPUTING, min(ASKING, at_once)) if waits else COMPUTING
        self.prompts = _threads(num_prompts, "prepare")
        self.long_prompts = _threads(1, "prepare-long")
        self.aside = Lane("aside", max_waiting=max_waiting)
        self.long_aside = Lane("aside-long", max_waiting=max_waiting)
        self.grammars = FairLane("grammar")
        self.trial = Trial(grammar_library)
        """Of new grammars."""

    def for_prompt(self, chars: int) -> Executor:
        return self.long_prompts if chars > LONG_CHARS else self.prompts

    def lane(self, chars: int) -> Lane:
        return self.long_aside if chars > LONG_CHARS else self.aside

    def close(self) -> None:
        """Blocks until work in progress is done."""
        self.trial.close()
        for lane in (self.aside, self.long_aside, self.grammars):
            lane.close()
        for threads in (self.prompts, self.long_prompts):
            threads.shutdown()


def _threads(number: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix=f"drivetrain-{name}")
