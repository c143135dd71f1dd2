"""Ctrl-C and SIGTERM: the first one unwinds what runs, so that everything is freed; one too many ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Terminated(BaseException):
    """SIGTERM came. Nobody but the boundary catches it."""


class Interrupts:
    """While entered, SIGINT raises `KeyboardInterrupt` and SIGTERM `Terminated`, in the main thread.

    Of further SIGINTs, `spare` are passed over while the first one is being handled; then the process ends at once.
    Call `reset` when an interrupt has been dealt with. Outside the main thread nothing is installed.
    """

    def __init__(self, spare: int = 0, leave: Callable[[int], Any] = os._exit) -> None:
        self._spare = spare
        self._leave = leave
        self._interrupts = 0
        self._terminated = False
        self._previous: dict[int, Any] = {}

    def reset(self) -> None:
        self._interrupts = 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and the shell's & ask for
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._terminated:
            self._leave(128 + number)
        elif number == signal.SIGTERM:
            self._terminated = True
            raise Terminated
        else:
            self._interrupts += 1
            if self._interrupts == 1:
                raise KeyboardInterrupt
            if self._interrupts > 1 + self._spare:
                self._leave(128 + number)
