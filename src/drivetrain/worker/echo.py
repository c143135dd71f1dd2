"""The steps of an echo alone: no engine is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from drivetrain.core.engine import Step, TokenStep
from drivetrain.core.results import FinishReason


class NothingToSample:
    """Every choice is at its limit before its first token."""

    unread = 0

    def __init__(self, choices: int) -> None:
        self._steps = iter([TokenStep(index, (), None, FinishReason.LENGTH) for index in range(choices)])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenStep:
        return next(self._steps)

    async def follow(self, hear: Callable[[Step], bool]) -> None:
        while hear(next(self._steps)):
            pass

    def finish(self, index: int) -> None:
        return None

    def abort(self) -> None:
        return None

    async def aclose(self) -> None:
        return None

    def on_released(self, callback: Callable[[], None]) -> None:
        callback()
