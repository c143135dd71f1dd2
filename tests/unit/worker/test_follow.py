"""`EventStream.follow`: events handed on in the call that brought the step, and everything that may end it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, TokenStep, WeightsFormat
from drivetrain.core.errors import Cancelled, DeadlineExceeded, EngineFailed
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.engines.channel import StepChannel
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.telemetry.tracing import Kind
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import Worker
from recorded_spans import RecordedSpan, RecordingTracer

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
TEXT = "one two three four"


def worker(**script: object) -> Worker:
    return Worker(FakeEngine(Script(text=TEXT, **script)), SPEC, Settings())  # type: ignore[arg-type] # of the tests


def step(token_id: int) -> TokenStep:
    return TokenStep(0, (token_id,))


@pytest.mark.parametrize("stop", [None, ["three"], ["never"]])
async def test_the_same_events_as_by_iterating(stop: list[str] | None) -> None:
    async with worker() as made:
        iterated = [event async for event in made.stream(prompt="x", temperature=0, stop=stop)]
        followed: list[Event] = []

        def hear(events: Sequence[Event]) -> bool:
            assert events
            followed.extend(events)
            return True

        stream = made.stream(prompt="x", temperature=0, stop=stop)
        await stream.follow(hear)
        await asyncio.sleep(0.01)
        assert made.status.running == 0
    assert isinstance(followed[0], Started)
    assert isinstance(followed[-1], Finished)
    assert followed[1:-1] == iterated[1:-1]


async def test_enough_for_now_and_on() -> None:
    async with worker() as made:
        stream, heard = made.stream(prompt="x", temperature=0), list[Event]()

        def hear_once(events: Sequence[Event]) -> bool:
            heard.extend(events)
            return False

        calls = 0
        while not heard or not isinstance(heard[-1], Finished):
            await stream.follow(hear_once)
            calls += 1
        await stream.follow(hear_once)  # after the last one there is nothing to hear
        assert calls > 3
        assert stream.result().text == TEXT
        assert sum(isinstance(event, Finished) for event in heard) == 1


@pytest.mark.parametrize("kind", [Started, Delta, Finished])
async def test_what_the_hearer_raises_is_raised_and_ends_the_request(kind: type[Event]) -> None:
    """As it is, at the first call, at a later one, and at the last one alike."""
    async with worker() as made:

        def hear(events: Sequence[Event]) -> bool:
            if any(isinstance(event, kind) for event in events):
                raise ZeroDivisionError
            return True

        with pytest.raises(ZeroDivisionError):
            await made.stream(prompt="x", temperature=0).follow(hear)
        await asyncio.sleep(0.02)
        assert made.status.running == 0
        assert (await made.generate(prompt="x", temperature=0)).text == TEXT


class BrokenSpan(RecordedSpan):
    def end(self, **how: Any) -> None:
        raise OSError("the exporter is gone")


class BrokenTracer(RecordingTracer):
    def start(self, name: str, *, kind: Kind = Kind.INTERNAL, **more: Any) -> RecordedSpan:
        return (RecordedSpan if kind is Kind.INTERNAL else BrokenSpan)(name, kind, None, None)


async def test_a_broken_tracer_takes_no_ending_away() -> None:
    async with Worker(FakeEngine(Script(text=TEXT)), SPEC, Settings(), tracer=BrokenTracer()) as made:
        events = [event async for event in made.stream(prompt="x", temperature=0)]
        assert isinstance(events[-1], Finished)
        heard: list[Event] = []

        def hear(some: Sequence[Event]) -> bool:
            heard.extend(some)
            return True

        await made.stream(prompt="x", temperature=0).follow(hear)
        assert isinstance(heard[-1], Finished)


async def test_what_ended_as_its_turn_came_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot; two streams are closed in a row, so that the second is granted the slot and closed at once."""
    engine = FakeEngine(Script(text=TEXT, repeat=True, step_delay_s=0.01))
    async with Worker(engine, SPEC, Settings(max_running=1)) as made:
        streams = [made.stream(prompt="x", max_tokens=3000) for _ in range(2)]
        following = []
        for stream in streams:
            following.append(asyncio.create_task(stream.follow(lambda events: True)))
            await asyncio.sleep(0.05)
        assert (made.status.running, made.status.waiting) == (1, 1)
        prepared: list[object] = []
        assert made._preparer is not None
        monkeypatch.setattr(made._preparer, "prepare", lambda *asked: prepared.append(asked))
        for stream in streams:
            await stream.aclose()
        for ended in await asyncio.gather(*following, return_exceptions=True):
            assert isinstance(ended, Cancelled)
        assert made.status.running == 0
        assert not prepared


@pytest.mark.parametrize("ending", ["deadline", "close", "cancel", "fault"])
async def test_other_endings(ending: str) -> None:
    script = {"fault": RuntimeError("boom"), "fault_at_step": 2} if ending == "fault" else {"hang_at_step": 2}
    async with worker(**script) as made:
        stream = made.stream(prompt="x", temperature=0, timeout_s=0.05 if ending == "deadline" else 10.0)
        following = asyncio.create_task(stream.follow(lambda events: True))
        await asyncio.sleep(0.02)
        if ending == "close":
            await stream.aclose()
        elif ending == "cancel":
            following.cancel()
        expected = {
            "deadline": DeadlineExceeded, "close": Cancelled, "cancel": asyncio.CancelledError, "fault": EngineFailed
        }  # fmt: skip
        with pytest.raises(expected[ending]):
            await following
        await asyncio.sleep(0.02)
        assert made.status.running == 0


async def test_a_stream_that_only_its_reader_holds() -> None:
    async with worker() as made:
        assert isinstance(await anext(made.stream(prompt="x")), Started)


async def test_a_cancelled_reader_leaves_nothing_for_the_collector() -> None:
    async with worker(repeat=True, max_concurrency=1) as made:
        held: list[weakref.ref[object]] = []

        async def read() -> None:
            stream = made.stream(prompt="x")
            held.append(weakref.ref(stream))
            async for _ in stream:
                pass

        gc.collect()
        gc.disable()
        try:
            reading = asyncio.create_task(read())
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.wait([reading])
            del reading
            assert held[0]() is None
        finally:
            gc.enable()


async def test_one_reader() -> None:
    async with worker(hang_at_step=0) as made:
        stream = made.stream(prompt="x", temperature=0)
        following = asyncio.create_task(stream.follow(lambda events: True))
        await asyncio.sleep(0.02)
        with pytest.raises(RuntimeError, match="one reader"):
            await stream.follow(lambda events: True)
        await stream.aclose()
        with pytest.raises(Cancelled):
            await following


async def test_a_channel_hands_on_in_the_push_and_keeps_what_comes_after_enough() -> None:
    channel, heard = StepChannel(on_abort=lambda: None, on_finish=lambda index: None), list[object]()

    def hear(given: object) -> bool:
        heard.append(given)
        return len(heard) != 2

    channel.push(step(1))
    following = asyncio.create_task(channel.follow(hear))
    await asyncio.sleep(0)
    assert heard == [step(1)]
    channel.push(step(2))
    assert heard == [step(1), step(2)]
    channel.push(step(3))
    assert channel.unread == 1
    await following
    channel.release()
    with pytest.raises(StopAsyncIteration):
        await channel.follow(hear)
    assert heard == [step(1), step(2), step(3)]
