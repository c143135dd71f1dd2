"""Whether anybody still waits for what a thread is at. A thread cannot be stopped from outside; it has to look."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Self, TypeVar

from drivetrain.core.errors import Cancelled

T = TypeVar("T")


class Wanted:
    """Entered by who waits, for as long as that is. `run` is for the thread, and may come before or after."""

    def __init__(self) -> None:
        self.over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True

    def run(self, work: Callable[[], T]) -> T:
        before = _current.set(self)
        try:
            return work()
        finally:
            _current.reset(before)


_current: ContextVar[Wanted] = ContextVar("wanted")
_ALWAYS = Wanted()


def check_wanted() -> None:
    """Raises `Cancelled` on a thread that nobody waits for any more. For long work, between its steps."""
    if _current.get(_ALWAYS).over:
        raise Cancelled("nobody waits for this any more")
