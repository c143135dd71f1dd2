"""A request that was given nothing yet goes on with the engine that takes the place of one that failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from bounds.test_ready import ENDLESS, SPEC, STEADY, Gated, outcome, quick, read_until_delta, until, worker_of
from drivetrain.core.engine import EmbedItem, EngineInfo, EngineRequest, ModelSpec, Progress, StepSink
from drivetrain.core.errors import Cancelled, DeadlineExceeded, EngineFailed, InvalidRequest, NotReady
from drivetrain.core.events import Finished, Started
from drivetrain.core.prompt import Prompt
from drivetrain.core.results import Embeddings
from drivetrain.core.status import State
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.worker.health import closing
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from recorded_spans import RecordingTracer, checked

__all__ = ["quick"]

SILENT = Script(repeat=True, hang_at_step=0)
"""Takes a request and gives nothing."""


async def test_it_is_answered_as_if_nothing_had_happened() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, FakeEngine(STEADY)) as worker:
        stream = worker.stream(prompt="x", max_tokens=5)
        assert isinstance(await anext(stream), Started)
        reading = asyncio.ensure_future(stream.batch())
        await until(lambda: broken.health().active == 1)
        broken.die()
        rest = [*await reading, *[event async for event in stream]]
        assert not any(isinstance(event, Started) for event in rest)
        assert isinstance(rest[-1], Finished)
        assert rest[-1].usage.completion_tokens == 5
        assert worker.stats.endings == {"finished": 1}
        assert worker.status.running == 0


async def test_one_that_has_begun_ends_typed_and_the_other_goes_on() -> None:
    broken = FakeEngine(STEADY)
    async with worker_of(broken, FakeEngine(STEADY), max_running=2) as worker:
        begun = worker.stream(**ENDLESS)
        await read_until_delta(begun)
        broken.script = SILENT
        waiting = asyncio.ensure_future(worker.generate(prompt="x", max_tokens=3))
        await until(lambda: broken.health().active == 2)
        broken.die()
        with pytest.raises(EngineFailed) as caught:
            async for _ in begun:
                pass
        assert caught.value.partial is not None
        assert caught.value.partial.usage.completion_tokens
        assert (await waiting).usage.completion_tokens == 3
        assert worker.stats.endings == {"engine_error": 1, "finished": 1}


async def test_one_that_kills_its_engines_costs_two_of_them() -> None:
    engines = [FakeEngine(SILENT) for _ in range(3)]

    async def kill() -> None:
        for engine in engines:
            await until(lambda engine=engine: engine.health().active == 1)  # type: ignore[misc] # bound now
            engine.die()

    async with worker_of(*engines, FakeEngine(STEADY)) as worker:
        killing = asyncio.create_task(kill())
        assert isinstance(await outcome(worker.generate(prompt="x", max_tokens=3)), EngineFailed)
        await until(lambda: worker.stats.restarts == 2 and worker.state is State.READY)
        killing.cancel()
        assert worker.stats.endings == {"engine_error": 1}


class Fragile(FakeEngine):
    """Dies of a request with a constraint, and notes how many others were in it when that came."""

    def __init__(self, script: Script, beside: list[int]) -> None:
        super().__init__(script)
        self._beside = beside

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        if request.grammar is not None:
            self._beside.append(self.health().active)
            asyncio.get_running_loop().call_soon(self.die)
        return super().generate(request, sink)


async def test_one_that_kills_its_engines_meets_nobody_in_the_second() -> None:
    beside: list[int] = []
    first = Fragile(SILENT, beside)
    async with worker_of(first, Fragile(STEADY, beside), FakeEngine(STEADY), max_running=4) as worker:
        honest = [asyncio.ensure_future(worker.generate(prompt="x", max_tokens=5)) for _ in range(3)]
        await until(lambda: first.health().active == 3)
        bomb = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=5, constraint={"regex": "x+"})))
        await until(lambda: bool(beside))
        newcomer = asyncio.ensure_future(worker.generate(prompt="x", max_tokens=5))
        assert isinstance(await bomb, EngineFailed)
        answers = await asyncio.gather(*honest, newcomer)
        assert [answer.usage.completion_tokens for answer in answers] == [5] * 4
        assert beside == [3, 0]
        await until(lambda: worker.stats.restarts == 2 and worker.state is State.READY)
        assert worker.stats.endings == {"finished": 4, "engine_error": 1}
        assert worker.status.running == worker.status.waiting == 0


async def test_its_deadline_is_that_of_the_whole() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, FakeEngine(SILENT)) as worker:
        answer = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3, timeout_s=1.0)))
        await until(lambda: broken.health().active == 1)
        broken.die()
        assert isinstance(await answer, DeadlineExceeded)
        await until(lambda: worker.status.running == 0)


async def test_who_leaves_meanwhile_holds_nothing() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, FakeEngine(STEADY)) as worker:
        stream = worker.stream(prompt="x", max_tokens=5)
        assert isinstance(await anext(stream), Started)
        await until(lambda: broken.health().active == 1)
        broken.die()
        await stream.aclose()
        await until(lambda: worker.state is State.READY)
        assert worker.status.running == worker.status.waiting == 0
        assert worker.stats.endings == {"cancelled": 1}
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


class DiesInGenerate(FakeEngine):
    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        self.die()
        return super().generate(request, sink)


async def test_who_leaves_one_that_was_closed_in_the_call_that_began_it() -> None:
    gate = asyncio.Event()
    async with worker_of(DiesInGenerate(STEADY), Gated(gate)) as worker:
        stream = worker.stream(prompt="x", max_tokens=5)
        assert isinstance(await anext(stream), Started)
        await until(lambda: worker.state is State.RESTARTING and worker.status.waiting == 1)
        async with asyncio.timeout(30):
            await stream.aclose()
        gate.set()
        await until(lambda: worker.state is State.READY)
        assert worker.status.running == worker.status.waiting == 0
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


async def test_where_no_engine_takes_its_place_the_error_stands() -> None:
    broken = FakeEngine(SILENT)
    async with worker_of(broken, restart=False) as worker:
        answer = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3)))
        await until(lambda: broken.health().active == 1)
        broken.die()
        assert isinstance(await answer, EngineFailed)


class NeverThere(FakeEngine):
    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_suspect_that_no_engine_comes_for_is_not_told_to_go_elsewhere() -> None:
    first = FakeEngine(SILENT)
    async with worker_of(first, NeverThere(SILENT)) as worker:
        suspect = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3)))
        await until(lambda: first.health().active == 1)
        first.die()
        await until(lambda: worker.state is State.RESTARTING)
        newcomer = asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3)))
        await until(lambda: worker.status.waiting == 2)
        await worker.stop()
        assert type(await suspect) is EngineFailed
        assert type(await newcomer) is NotReady


async def test_its_span_says_so() -> None:
    tracer, broken, answered = RecordingTracer(), FakeEngine(SILENT), FakeEngine(STEADY)
    async with EngineWorker(broken, SPEC, Settings(), remake=lambda: answered, tracer=tracer) as worker:
        answer = asyncio.ensure_future(worker.generate(prompt="x", max_tokens=3))
        await until(lambda: broken.health().active == 1)
        broken.die()
        await answer
    (span,) = tracer.requests
    checked(span, ["queue", "prepare", "prefill", "decode"])
    assert span.events == [("drivetrain.restarted", {"error.type": "engine_error"})]


# Embeddings


class Holding(FakeEngine):
    """Keeps the texts that it is given, until it dies or is closed."""

    def __init__(self) -> None:
        super().__init__(STEADY)
        self.asked = asyncio.Event()
        self._gone = asyncio.Event()

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        self.asked.set()
        await self._gone.wait()
        return await super().embed(items)

    def die(self, why: str = "the fake died") -> None:
        super().die(why)
        self._gone.set()

    async def close(self) -> None:
        await super().close()
        self._gone.set()


async def test_embeddings_go_on_with_the_next_engine() -> None:
    tracer, broken, second = RecordingTracer(), Holding(), FakeEngine(STEADY)
    async with EngineWorker(broken, SPEC, Settings(), remake=lambda: second, tracer=tracer) as worker:
        embedding = asyncio.ensure_future(worker.embed("x"))
        await broken.asked.wait()
        broken.die()
        assert isinstance(await embedding, Embeddings)
        assert worker.stats.endings == {"finished": 1}
        assert worker.stats.queue_s.count == worker.stats.request_s.count == 1
        assert worker.status.running == 0
    (span,) = tracer.requests
    checked(span, ["queue", "prepare", "embed"])
    assert span.events == [("drivetrain.restarted", {"error.type": "engine_error"})]


async def test_embeddings_that_an_engine_hangs_over_go_on_too() -> None:
    """It does not say that it failed; it is closed because it does not move."""
    async with worker_of(Holding(), FakeEngine(STEADY), stall_s=1) as worker:
        assert isinstance(await outcome(worker.embed("x")), Embeddings)
        assert worker.stats.restarts == 1


class DiesWhenLeft(FakeEngine):
    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        try:
            await asyncio.Event().wait()
        finally:
            self.die()
            raise EngineFailed("it died while it was left")


async def test_embeddings_that_are_too_late_do_not_start_again() -> None:
    async with worker_of(DiesWhenLeft(STEADY), Holding()) as worker:
        assert isinstance(await outcome(worker.embed("x", timeout_s=0.1)), DeadlineExceeded)
        limit = worker.capabilities.limits.max_timeout_s
        assert isinstance(await outcome(worker.embed("x", timeout_s=limit + 1)), InvalidRequest)


class Buggy(FakeEngine):
    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        raise KeyError("nobody thought of it")


async def test_a_bug_under_embeddings_is_one_typed_ending() -> None:
    async with worker_of(Buggy(STEADY)) as worker:
        assert isinstance(await outcome(worker.embed("x")), EngineFailed)
        assert worker.stats.endings == {"engine_error": 1}


class HeldTokenizer(ByteTokenizer):
    waits = False

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()

    def encode(self, prompt: Prompt) -> list[int]:
        self.begun.set()
        self.gate.wait(60)
        return super().encode(prompt)


async def test_embeddings_whose_engine_was_replaced_while_they_were_tokenized() -> None:
    tokenizer = HeldTokenizer()
    broken = FakeEngine(STEADY, tokenizer=tokenizer)
    async with worker_of(broken, FakeEngine(STEADY, tokenizer=tokenizer)) as worker:
        embedding = asyncio.ensure_future(outcome(worker.embed("x")))
        await asyncio.to_thread(tokenizer.begun.wait, 60)
        broken.die()
        await until(lambda: worker.stats.restarts == 1)
        tokenizer.gate.set()
        assert isinstance(await embedding, Embeddings)
        assert worker.status.running == 0


async def test_embeddings_that_kill_their_engines_cost_two_of_them() -> None:
    engines = [Holding() for _ in range(3)]

    async def kill() -> None:
        for engine in engines:
            await engine.asked.wait()
            engine.die()

    async with worker_of(*engines, FakeEngine(STEADY)) as worker:
        killing = asyncio.create_task(kill())
        assert isinstance(await outcome(worker.embed("x")), EngineFailed)
        await until(lambda: worker.stats.restarts == 2 and worker.state is State.READY)
        killing.cancel()
        assert worker.stats.endings == {"engine_error": 1}


async def test_embeddings_tell_that_their_engine_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look of the worker's own comes in between."""
    monkeypatch.setattr("drivetrain.worker.worker.WATCH_INTERVAL_S", 3600.0)
    engine = Holding()
    async with worker_of(engine, restart=False) as worker:
        embedding = asyncio.ensure_future(outcome(worker.embed("x")))
        await engine.asked.wait()
        engine.die()
        assert isinstance(await embedding, EngineFailed)
        await until(lambda: worker.state is State.FAILED)


class Stuck(Holding):
    """Lets go of nothing, and its end does not come."""

    async def close(self) -> None:
        await FakeEngine.close(self)
        await asyncio.Event().wait()


@pytest.mark.parametrize("timeout_s", [None, 0.05])
async def test_embeddings_end_with_an_engine_that_cannot_be_ended(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    monkeypatch.setattr(closing, "CLOSE_S", 0.2)
    async with worker_of(Stuck(), FakeEngine(STEADY), stall_s=0.2) as worker:
        ended = await outcome(worker.embed("x", timeout_s=timeout_s))
        assert isinstance(ended, EngineFailed if timeout_s is None else DeadlineExceeded)


async def test_a_worker_that_stops_ends_embeddings() -> None:
    engine = Holding()
    worker = worker_of(engine)
    await worker.start()
    embedding = asyncio.ensure_future(outcome(worker.embed("x")))
    await engine.asked.wait()
    await worker.stop()
    assert isinstance(await embedding, Cancelled)
