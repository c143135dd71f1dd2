"""Completions of one moment: who is held back, for whom, and what becomes of them when the opening fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from drivetrain.engines.llamacpp import together
from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.engines.llamacpp.together import Together

FIRST = {"prompt": [1], "n_predict": 1}
EVENT = {"stop": False}
END = {"stop": True}


class Wire:
    """What was written on one connection: 10 bytes are a whole request."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, *, but: int = 0) -> None:
        self.written = 10 - but


class Opening:
    """llama.cpp, asked for the one token. It says nothing until told to."""

    def __init__(self, error: Exception | None = None, event: dict[str, Any] = EVENT) -> None:
        self._event = event
        self.asked: list[Any] = []
        self.say = asyncio.Event()
        self.heard: list[bool] = []
        self._error = error

    async def ask(self, body: Any, heard: Callable[[dict[str, Any]], bool]) -> None:
        self.asked.append(body)
        await self.say.wait()
        if self._error is not None:
            raise self._error
        self.heard += [heard(self._event), heard(END)]


async def begun(group: Together, wires: list[Wire], *, running: int, first: Any = lambda: FIRST) -> None:
    """All in one turn of the loop, with so many running in all; then some turns more."""
    with ExitStack() as stack:
        for _ in range(running):
            stack.enter_context(group.running())
        for wire in wires:
            group.add(wire, first)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_who_comes_alone_is_asked_at_once() -> None:
    opening, wire = Opening(), Wire()
    await begun(Together(opening.ask), [wire], running=1)
    assert (wire.written, opening.asked) == (10, [])


async def test_those_of_one_moment_wait_for_the_first_word_of_the_opening() -> None:
    opening, wires = Opening(), [Wire(), Wire(), Wire()]
    await begun(Together(opening.ask), wires, running=3)
    assert opening.asked == [FIRST]
    assert [wire.written for wire in wires] == [9, 9, 9]
    opening.say.set()
    await asyncio.sleep(0.01)
    assert [wire.written for wire in wires] == [10, 10, 10]
    assert opening.heard == [False, True]


async def test_those_who_join_others_need_no_opening() -> None:
    opening, wires = Opening(), [Wire(), Wire()]
    await begun(Together(opening.ask), wires, running=3)
    assert ([wire.written for wire in wires], opening.asked) == ([10, 10], [])


async def test_without_a_step_to_take_before_them_there_is_none() -> None:
    opening, wires = Opening(), [Wire(), Wire()]
    await begun(Together(opening.ask), wires, running=2, first=None)
    assert ([wire.written for wire in wires], opening.asked) == ([10, 10], [])


@pytest.mark.parametrize(
    "error", [OSError("gone"), EOFError("cut"), ValueError("no HTTP"), ServerRefused(503, "unavailable_error", "busy")]
)
async def test_an_opening_that_fails_is_nobody_elses_failure(error: Exception) -> None:
    opening, wires = Opening(error), [Wire(), Wire()]
    opening.say.set()
    await begun(Together(opening.ask), wires, running=2)
    assert [wire.written for wire in wires] == [10, 10]


async def test_the_next_moment_is_another_one() -> None:
    opening, wires = Opening(), [Wire(), Wire()]
    opening.say.set()
    group = Together(opening.ask)
    await begun(group, wires, running=2)
    await begun(group, wires, running=2)
    assert len(opening.asked) == 2


@pytest.mark.parametrize(("cache", "left"), [(499, False), (100, True)])
async def test_an_opening_that_would_compute_more_is_left(cache: int, left: bool) -> None:
    event = {"stop": False, "prompt_progress": {"total": 500, "cache": cache}}
    opening, wires = Opening(event=event), [Wire(), Wire()]
    opening.say.set()
    await begun(Together(opening.ask), wires, running=2)
    assert opening.heard == [left, True]
    assert [wire.written for wire in wires] == [10, 10]


async def test_nobody_waits_long_for_an_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "LONGEST_S", 0.02)
    opening, wires = Opening(), [Wire(), Wire()]
    await begun(Together(opening.ask), wires, running=2)
    assert [wire.written for wire in wires] == [9, 9]
    await asyncio.sleep(0.1)
    assert [wire.written for wire in wires] == [10, 10]
