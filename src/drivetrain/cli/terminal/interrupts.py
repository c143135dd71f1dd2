"""Ctrl-C and SIGTERM: the first one unwinds what runs, so that everything is freed; one too many ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], None]
RESEND_DELAY_S = 0.01
"""Before a signal whose exception Python dropped is sent again."""


class Terminated(BaseException):
    """SIGTERM came. Only the boundary catches it."""


@contextlib.contextmanager
def handling(handle: Handler) -> Iterator[None]:
    """While entered, `handle` takes SIGINT and SIGTERM. Outside the main thread nothing is installed."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in map(int, (signal.SIGINT, signal.SIGTERM)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and the shell's & ignore them on purpose
                previous[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


class Interrupts:
    """While entered, SIGINT raises `KeyboardInterrupt` and SIGTERM `Terminated`, in the main thread.

    While the first SIGINT is being handled, `spare` more are ignored; after that the process ends at once. Call `reset`
    when an interrupt has been dealt with. A signal whose exception Python drops, as in a `__del__`, is sent again.
    """

    def __init__(self, spare: int = 0, leave: Callable[[int], Any] = os._exit) -> None:
        self._spare = spare
        self._leave = leave
        self._interrupts = 0
        self._terminated = False
        self._handlers = handling(self._handle)
        self._previous_hook: Callable[[Any], Any] = sys.unraisablehook

    def reset(self) -> None:
        self._interrupts = 0

    def __enter__(self) -> Self:
        self._handlers.__enter__()
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._dropped
        return self

    def __exit__(self, *exc: object) -> None:
        sys.unraisablehook = self._previous_hook
        self._handlers.__exit__(None, None, None)

    def _dropped(self, dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            self._interrupts = 0  # only the first one raises
            _send_again(signal.SIGINT)
        elif issubclass(dropped.exc_type, Terminated):
            self._terminated = False
            _send_again(signal.SIGTERM)
        else:
            self._previous_hook(dropped)

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


def _send_again(number: int) -> None:
    """From another thread: sent from here, its exception would be dropped again."""
    timer = threading.Timer(RESEND_DELAY_S, _send, [number])
    timer.daemon = True
    timer.start()


def _send(number: int) -> None:
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)  # also wakes it from a blocking call
    else:
        signal.raise_signal(number)
