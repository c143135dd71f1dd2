"""Sinks: events handed on in the call that brought the step, and everything that may end a request."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from drivetrain.core.engine import ModelSpec, Step, TokenStep, WeightsFormat
from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, EngineFailed
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.engines.base.channel import Ending, StepChannel
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker.output import Output
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from recorded_spans import RecordedSpan, RecordingTracer

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
TEXT = "one two three four"


def worker(**script: object) -> EngineWorker:
    return EngineWorker(FakeEngine(Script(text=TEXT, **script)), SPEC, Settings())  # type: ignore[arg-type] # of the tests


def step(token_id: int) -> TokenStep:
    return TokenStep(0, (token_id,))


def asking(**values: Any) -> GenerateRequest:
    return GenerateRequest(**{"prompt": "x", "temperature": 0, **values})


class Heard:
    """A sink that keeps all it hears; `raising` at the first event of that kind."""

    unread = 0
    last_read = time.monotonic() + 10**9

    def __init__(self, raising: type[Event] | None = None) -> None:
        self.events: list[Event] = []
        self.errors: list[DrivetrainError] = []
        self.over = asyncio.Event()
        self._raising = raising

    def take(self, events: Sequence[Event]) -> None:
        assert events
        if self._raising is not None and any(isinstance(event, self._raising) for event in events):
            raise ZeroDivisionError
        self.events += events
        if isinstance(events[-1], Finished):
            self.over.set()

    def fail(self, error: DrivetrainError) -> None:
        self.errors.append(error)
        self.over.set()


@pytest.mark.parametrize("stop", [None, ("three",), ("never",)])
async def test_the_same_events_as_by_iterating(stop: tuple[str, ...] | None) -> None:
    async with worker() as made:
        iterated = [event async for event in made.stream(prompt="x", temperature=0, stop=stop)]
        heard = Heard()
        submission = made.submit(asking(stop=stop), heard)
        await heard.over.wait()
        assert submission.ended
        await submission.released()
        assert made.status.running == 0
    assert isinstance(heard.events[0], Started)
    assert isinstance(heard.events[-1], Finished)
    assert heard.events[1:-1] == iterated[1:-1]
    assert not heard.errors


async def test_a_batch_is_all_that_waits() -> None:
    async with worker() as made:
        stream, read = made.stream(prompt="x", temperature=0), list[Event]()
        first = await stream.batch()
        await asyncio.sleep(0.05)
        rest = await stream.batch()
        assert isinstance(first[0], Started)
        assert len(rest) > 3
        read += (*first, *rest)
        while more := await stream.batch():
            read += more
        assert isinstance(read[-1], Finished)
        assert not await stream.batch()  # after the last one there is nothing to read
        assert stream.result().text == TEXT


@pytest.mark.parametrize("kind", [Started, Delta, Finished])
async def test_a_sink_that_fails_ends_its_request_and_no_other(kind: type[Event]) -> None:
    async with worker() as made:
        sink, other = Heard(kind), Heard()
        submission = made.submit(asking(), sink)
        made.submit(asking(), other)
        await other.over.wait()
        assert isinstance(other.events[-1], Finished)
        await submission.released()
        assert submission.ended
        assert [type(error) for error in sink.errors] == ([] if kind is Finished else [Cancelled])
        await asyncio.sleep(0.02)
        assert made.status.running == 0
        assert (await made.generate(prompt="x", temperature=0)).text == TEXT


class BrokenSpan(RecordedSpan):
    def end(self, end_time: int | None = None) -> None:
        if self.kind is SpanKind.SERVER:
            raise OSError("the exporter is gone")
        super().end(end_time)


async def test_a_broken_tracer_takes_no_ending_away() -> None:
    async with EngineWorker(
        FakeEngine(Script(text=TEXT)), SPEC, Settings(), tracer=RecordingTracer(BrokenSpan)
    ) as made:
        events = [event async for event in made.stream(prompt="x", temperature=0)]
        assert isinstance(events[-1], Finished)
        heard = Heard()
        made.submit(asking(), heard)
        await heard.over.wait()
        assert isinstance(heard.events[-1], Finished)


async def test_what_ended_as_its_turn_came_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot; two requests are cancelled in a row, so that the second is granted the slot and cancelled at once."""
    engine = FakeEngine(Script(text=TEXT, repeat=True, step_delay_s=0.01))
    async with EngineWorker(engine, SPEC, Settings(max_running=1)) as made:
        sinks = [Heard(), Heard()]
        submissions = []
        for sink in sinks:
            submissions.append(made.submit(asking(max_tokens=3000), sink))
            await asyncio.sleep(0.05)
        assert (made.status.running, made.status.waiting) == (1, 1)
        prepared: list[object] = []
        monkeypatch.setattr(made.preparer, "prepare", lambda *asked: prepared.append(asked))
        for submission in submissions:
            submission.cancel("enough")
        for submission, sink in zip(submissions, sinks, strict=True):
            await submission.released()
            assert [type(error) for error in sink.errors] == [Cancelled]
        assert made.status.running == 0
        assert not prepared


async def test_one_that_is_cancelled_before_it_began_holds_nothing() -> None:
    async with worker() as made:
        heard = Heard()
        submission = made.submit(asking(), heard)
        submission.cancel("in the same breath")
        await submission.released()
        assert [type(error) for error in heard.errors] == [Cancelled]
        assert not heard.events
        assert made.status.running == 0
        assert (await made.generate(prompt="x", temperature=0)).text == TEXT


@pytest.mark.parametrize("ending", ["deadline", "close", "cancel", "fault"])
async def test_other_endings(ending: str) -> None:
    script = {"fault": RuntimeError("boom"), "fault_at_step": 2} if ending == "fault" else {"hang_at_step": 2}

    async def read() -> None:
        async for _ in stream:
            pass

    async with worker(**script) as made:
        stream = made.stream(prompt="x", temperature=0, timeout_s=0.05 if ending == "deadline" else 10.0)
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.02)
        if ending == "close":
            await stream.aclose()
        elif ending == "cancel":
            reading.cancel()
        expected = {
            "deadline": DeadlineExceeded, "close": Cancelled, "cancel": asyncio.CancelledError, "fault": EngineFailed
        }  # fmt: skip
        with pytest.raises(expected[ending]):
            await reading
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
    async with worker(first_delay_s=30.0) as made:
        stream = made.stream(prompt="x", temperature=0)
        assert isinstance(await anext(stream), Started)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.02)
        with pytest.raises(RuntimeError, match="one reader"):
            await anext(stream)
        await stream.aclose()
        with pytest.raises(Cancelled):
            await reading


class Noted:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.ends: list[DrivetrainError | None] = []

    def take(self, step: Step) -> None:
        self.steps.append(step)

    def close(self, error: DrivetrainError | None) -> None:
        self.ends.append(error)


async def test_a_channel_hands_on_in_the_push_and_ends_once() -> None:
    noted, aborts = Noted(), list[None]()
    channel = StepChannel(noted, on_abort=lambda: aborts.append(None), on_finish=lambda index: None)
    channel.push(step(1))
    assert noted.steps == [step(1)]
    channel.abort()
    channel.abort()
    channel.push(step(2))
    assert (noted.steps, len(aborts), noted.ends) == ([step(1)], 1, [])
    error = EngineFailed("gone")
    channel.release(error)
    channel.release()
    assert noted.ends == [error]


async def test_after_its_release_a_channel_tells_the_engine_nothing() -> None:
    told = list[object]()
    channel = StepChannel(Noted(), on_abort=lambda: told.append("abort"), on_finish=told.append)
    channel.finish(1)
    channel.release()
    channel.finish(2)
    channel.abort()
    assert told == [1]


async def test_what_has_no_steps_is_waited_for_and_raises_what_it_ended_with() -> None:
    ending = Ending()
    channel = StepChannel(ending, on_abort=lambda: None, on_finish=lambda index: None)
    waiting = asyncio.create_task(ending.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    channel.release(EngineFailed("gone"))
    with pytest.raises(EngineFailed, match="gone"):
        await ending.wait()


async def test_an_ending_is_counted_though_the_rest_of_its_text_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Output) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Output, "flush", broken)
    heard = Heard()
    async with worker(repeat=True, step_delay_s=0.01) as open_worker:
        run = open_worker.submit(asking(max_tokens=1000), heard)
        while not heard.events:
            await asyncio.sleep(0.001)
        run.cancel("enough")
        await run.released()
        assert open_worker.stats.endings == {"cancelled": 1}
        assert not open_worker._runs
    assert [type(error) for error in heard.errors] == [Cancelled]
