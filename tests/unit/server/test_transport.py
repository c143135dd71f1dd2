"""Who takes a little is served, and who takes nothing for the timeout is cut off: by a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from drivetrain.server.http.transport import LingeringTransport, WriteProgress


class Clock:
    """As much of an event loop as is needed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handle: Handle | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        self.handle = Handle(self.now + delay, call)
        return self.handle

    def turn(self, seconds: float) -> None:
        end = self.now + seconds
        while self.handle is not None and not self.handle.cancelled and self.handle.when <= end:
            handle, self.handle = self.handle, None
            self.now = handle.when
            handle.call()
        self.now = end


class Handle:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when, self.call, self.cancelled = when, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Full:
    """A transport with bytes that nobody has taken."""

    def __init__(self) -> None:
        self.unsent = 100_000
        self.was_reset = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> Any:
        return None

    def reset(self) -> None:
        self.was_reset = True


def watched() -> tuple[Full, Clock, WriteProgress]:
    transport, clock = Full(), Clock()
    progress = WriteProgress(
        cast("LingeringTransport", transport), cast("asyncio.AbstractEventLoop", clock), timeout_s=60.0
    )
    progress.begin()
    return transport, clock, progress


def test_who_takes_nothing_is_cut_off() -> None:
    transport, clock, _ = watched()
    clock.turn(59)
    assert not transport.was_reset
    clock.turn(10)
    assert transport.was_reset


def test_who_takes_a_byte_now_and_then_is_not() -> None:
    transport, clock, _ = watched()
    for _ in range(20):
        clock.turn(50)
        transport.unsent -= 1
    assert not transport.was_reset
    clock.turn(70)
    assert transport.was_reset


def test_who_has_taken_all_is_not_looked_at() -> None:
    transport, clock, progress = watched()
    clock.turn(50)
    progress.end()
    clock.turn(1000)
    assert not transport.was_reset
    progress.begin()  # the next time begins anew
    clock.turn(50)
    assert not transport.was_reset
    clock.turn(20)
    assert transport.was_reset
