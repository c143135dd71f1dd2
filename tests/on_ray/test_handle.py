"""What a handle makes of what Ray does: replicas that are lost, queues that are full, nobody there. Without a Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from drivetrain.core.capabilities import Capabilities, RerankWay
from drivetrain.core.errors import (
    Cancelled,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    NotReady,
    Overloaded,
    Unsupported,
)
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.parameters import PARAMETERS, build_request
from drivetrain.core.results import ComputeThreads, DeviceMemory, EngineCounts, FinishReason, KvBlocks, Metrics, Usage
from drivetrain.core.status import Metadata, State, Status
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.ray import handle, handle_run, protocol, reports
from drivetrain.scale.ray.handle import HandleWorker
from drivetrain.scale.ray.reports import ReplicaReport, Terms
from probe import runs_of

REPORT = ReplicaReport(
    metadata=Metadata(
        name="m", engine="fake", architecture="", device="cpu", dtype="", context_length=99, vocab_size=9, family="",
        family_why="", answer_form="", answer_form_why="", tool_form="", tool_form_why="", roles={}, separator="",
        stop=(), eos_ids=(), embedding_size=0, pooling=None, sampling={}, versions={},
    ),
    capabilities=Capabilities(parameters=frozenset(PARAMETERS) - {"top_k"}, vision=True, context_length=99),
    terms=Terms(timeout_s=5, drain_s=1, reader_timeout_s=5, max_unread=100),
    status=Status(
        state=State.READY, running=0, waiting=0, endings={}, prompt_tokens=0, completion_tokens=0, engine_alive=True,
        last_progress_s=0,
    ),
)  # fmt: skip
BEGUN: list[Event] = [Started("r", "m", 3, grammar="tools"), Delta(0, "Hel", (1,)), Delta(0, "lo", (2,))]
ENDED: list[Event] = [ChoiceFinished(0, FinishReason.LENGTH), Finished(Usage(3, 2), Metrics())]
WHOLE = [protocol.dump_events(BEGUN), protocol.dump_events(ENDED)]

Item = bytes | Exception | float
"""What a call gives, raises, or waits for in seconds."""


class Answer:
    """A call of a scripted handle: awaited, or iterated."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __await__(self) -> Any:
        return self._one().__await__()

    async def _one(self) -> bytes:
        return await anext(aiter(self))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, float):
                async with asyncio.timeout(item):
                    while not self.cancelled:
                        await asyncio.sleep(0.001)
                return
            yield item


class Method:
    def __init__(self, answer: Callable[[], Answer]) -> None:
        self._answer = answer

    def remote(self, *arguments: Any) -> Answer:
        return self._answer()


class Scripted:
    """A handle whose streaming calls answer by a script, one after the other."""

    def __init__(self, *script: list[Item], describe: Item | None = None) -> None:
        self._script = list(script)
        self._describe = describe or protocol.dumps(REPORT)
        self.calls: list[Answer] = []
        self.polls = 0

    def options(self, *, stream: bool) -> Scripted:
        return self

    @property
    def describe(self) -> Method:
        self.polls += 1
        return Method(lambda: Answer([self._describe]))

    @property
    def submit(self) -> Method:
        return Method(self._next)

    tokenize = embed = rerank = submit

    def _next(self) -> Answer:
        self.calls.append(Answer(self._script.pop(0)))
        return self.calls[-1]


@asynccontextmanager
async def worker_over(scripted: Scripted) -> AsyncIterator[HandleWorker]:
    worker = HandleWorker(scripted, "m")
    worker.start()
    await worker.ready()
    yield worker
    assert not runs_of(worker)
    await worker.stop()


async def test_a_whole_answer() -> None:
    async with worker_over(Scripted([*WHOLE])) as worker:
        result = await worker.generate(prompt="x")
        assert result.text == "Hello"
        assert result.usage == Usage(3, 2)
        assert worker.stats.endings == {"finished": 1}
        assert worker.stats.completion_tokens == 2
        assert worker.stats.first_token_s.count == 1


async def test_a_replica_that_is_lost_under_a_stream_ends_it_once_with_what_had_come() -> None:
    scripted = Scripted([WHOLE[0], ActorDiedError()])
    async with worker_over(scripted) as worker:
        events = []
        with pytest.raises(EngineFailed) as caught:
            async for event in worker.stream(prompt="x"):
                events.append(event)
        assert events == BEGUN
        assert caught.value.partial is not None
        assert caught.value.partial.choices[0].text == "Hello"
        assert caught.value.partial.usage == Usage(3, 2)
        assert len(scripted.calls) == 1
        assert worker.stats.endings == {"engine_error": 1}


async def test_one_that_is_lost_before_the_first_event_is_asked_again_elsewhere() -> None:
    scripted = Scripted([ActorDiedError()], [*WHOLE])
    async with worker_over(scripted) as worker:
        assert (await worker.generate(prompt="x")).text == "Hello"
        assert worker.stats.endings == {"finished": 1}


async def test_but_never_a_third_time() -> None:
    """It may be what the replicas are lost of."""
    scripted = Scripted(*([ActorDiedError()] for _ in range(9)))
    async with worker_over(scripted) as worker:
        with pytest.raises(EngineFailed):
            await worker.generate(prompt="x")
        assert len(scripted.calls) == 2
        with pytest.raises(EngineFailed):
            await worker.tokenize("x")
        assert len(scripted.calls) == 4


@pytest.mark.parametrize(
    ("raised", "typed"),
    [
        (BackPressureError(3, 2), Overloaded),
        (DeploymentUnavailableError("d"), NotReady),
        (RayTaskError("f", "", ValueError("ours")), EngineFailed),
    ],
)
async def test_what_ray_raises_has_a_type_of_ours(raised: Exception, typed: type[DrivetrainError]) -> None:
    async with worker_over(Scripted([raised])) as worker:
        with pytest.raises(typed) as caught:
            await worker.generate(prompt="x")
        assert type(caught.value) is typed
        assert "ours" not in str(caught.value)


async def test_a_stream_without_an_ending_is_a_failure() -> None:
    async with worker_over(Scripted([WHOLE[0]])) as worker:
        with pytest.raises(EngineFailed):
            await worker.generate(prompt="x")


async def test_a_deadline_ends_the_call() -> None:
    scripted = Scripted([WHOLE[0], 5.0])
    async with worker_over(scripted) as worker:
        with pytest.raises(DeadlineExceeded) as caught:
            await worker.generate(prompt="x", timeout_s=0.05)
        assert scripted.calls[0].cancelled
        assert caught.value.partial is not None
        assert caught.value.partial.choices[0].text == "Hello"


async def test_a_closed_stream_waits_for_the_end_of_its_call() -> None:
    scripted = Scripted([WHOLE[0], 5.0])
    async with worker_over(scripted) as worker:
        answer = worker.stream(prompt="x")
        await anext(answer)
        assert worker.status.running == 1
        await answer.aclose()
        assert scripted.calls[0].cancelled
        assert worker.status.running == 0
        assert worker.stats.endings == {"cancelled": 1}


ABLE = replace(REPORT.capabilities, embeddings=True, rerank=RerankWay.LOGITS)
ABLE_REPORT = protocol.dumps(replace(REPORT, capabilities=ABLE))
ENGINE_CALLS: list[Callable[[HandleWorker, float | None], Coroutine[Any, Any, Any]]] = [
    lambda worker, timeout_s: worker.embed("x", timeout_s=timeout_s),
    lambda worker, timeout_s: worker.rerank("x", ["y"], timeout_s=timeout_s),
]


@pytest.mark.parametrize("ask", ENGINE_CALLS)
async def test_what_has_one_answer_is_counted_while_it_runs_and_ends_as_a_stream_does(ask: Any) -> None:
    scripted = Scripted([5.0], [5.0], describe=ABLE_REPORT)
    async with worker_over(scripted) as worker:
        asked = asyncio.create_task(ask(worker, None))
        await until(lambda: worker.status.running == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        with pytest.raises(DeadlineExceeded):
            await ask(worker, 0.05)
        assert [call.cancelled for call in scripted.calls] == [True, True]
        assert worker.status.running == 0
        assert worker.stats.endings == {"cancelled": 1, "deadline_exceeded": 1}


@pytest.mark.parametrize("ask", ENGINE_CALLS)
async def test_draining_waits_for_it_and_then_ends_it(ask: Any) -> None:
    scripted = Scripted([5.0], describe=ABLE_REPORT)
    async with worker_over(scripted) as worker:
        asked = asyncio.create_task(ask(worker, None))
        await until(lambda: worker.status.running == 1)
        draining = asyncio.create_task(worker.drain(60))
        await until(lambda: worker.state is State.DRAINING)
        assert not draining.done()
        assert not asked.done()
        await worker.stop()
        assert worker.status.running == 0, "its caller has heard of it"
        with pytest.raises(Cancelled, match="shut down"):
            await asked
        await draining
        assert scripted.calls[0].cancelled
        assert worker.status.running == 0


async def test_a_batch_is_all_that_has_come() -> None:
    async with worker_over(Scripted([*WHOLE])) as worker:
        answer = worker.stream(prompt="x")
        heard: list[Event] = []
        while events := await answer.batch():
            heard += events
        assert heard == BEGUN + ENDED
        assert worker.stats.constrained == {"tools": 1}


class Breaking:
    """A sink that cannot take what it is given."""

    unread = 0
    last_read = 0.0

    def __init__(self) -> None:
        self.errors: list[DrivetrainError] = []

    def take(self, events: Any) -> None:
        raise ZeroDivisionError

    def fail(self, error: DrivetrainError) -> None:
        self.errors.append(error)


async def test_a_sink_that_breaks_ends_its_request() -> None:
    async with worker_over(Scripted([WHOLE[0], 5.0])) as worker:
        sink = Breaking()
        submission = worker.submit(build_request({"prompt": "x"}), sink)
        while not submission.ended:
            await asyncio.sleep(0.01)
        await submission.released()
        assert [type(error) for error in sink.errors] == [Cancelled]
        assert worker.stats.endings == {"cancelled": 1}


async def test_nobody_there_is_not_ready() -> None:
    worker = HandleWorker(Scripted(describe=ActorDiedError()), "m")
    worker.start()
    await asyncio.sleep(0.05)
    assert worker.state is State.LOADING
    request = build_request({"prompt": "x"})
    for ask in (lambda: worker.submit(request, Breaking()), lambda: worker.capabilities):
        with pytest.raises(NotReady):
            ask()
    with pytest.raises(NotReady):
        await worker.embed("x")
    await worker.stop()


async def test_replicas_that_fall_silent_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "SILENCE_S", 0.05)
    monkeypatch.setattr(handle, "POLL_S", 0.02)
    scripted = Scripted()
    async with worker_over(scripted) as worker:
        scripted._describe = ActorDiedError()
        async with asyncio.timeout(5):
            while worker.status.engine_alive:
                await asyncio.sleep(0.01)
        with pytest.raises(NotReady):
            await worker.generate(prompt="x")


async def test_but_not_while_one_has_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """While all slots compute long prompts, a poll waits its turn, and no events come."""
    monkeypatch.setattr(handle, "SILENCE_S", 0.05)
    monkeypatch.setattr(handle, "POLL_S", 0.02)
    scripted = Scripted([WHOLE[0], 5.0])
    async with worker_over(scripted) as worker:
        answer = worker.stream(prompt="x")
        await anext(answer)
        scripted._describe = 5.0
        await asyncio.sleep(0.3)
        assert worker.state is State.READY
        await answer.aclose()
        async with asyncio.timeout(5):
            while worker.state is State.READY:
                await asyncio.sleep(0.01)


NOT_NOW: list[Item] = [protocol.dump_failure(NotReady("the engine is restarting", retry_after_s=2.0))]


async def test_a_request_that_a_replica_declines_goes_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_run, "DECLINED_WAIT_S", 0.01)
    async with worker_over(Scripted(NOT_NOW, NOT_NOW, [*WHOLE])) as worker:
        assert (await worker.generate(prompt="x")).text == "Hello"
        assert worker.stats.endings == {"finished": 1}


async def test_and_ends_so_where_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_run, "DECLINED_WAIT_S", 0.01)
    scripted = Scripted(*([NOT_NOW] * 9))
    async with worker_over(scripted) as worker:
        with pytest.raises(NotReady, match="is restarting"):
            await worker.generate(prompt="x")
        assert len(scripted.calls) == 3
        assert worker.stats.endings == {"not_ready": 1}


@pytest.mark.parametrize("item", [b"not json", b'[["Later", {}]]', b"[[]]", b"[[7, 1, 2]]", b""])
async def test_what_is_not_understood_ends_the_request_and_its_call(item: bytes) -> None:
    scripted = Scripted([WHOLE[0], item, 5.0])
    async with worker_over(scripted) as worker:
        with pytest.raises(EngineFailed, match="understand"):
            await worker.generate(prompt="x")
        assert scripted.calls[0].cancelled
        assert worker.stats.endings == {"engine_error": 1}


def report(replica: str = "a", restarts: int = 0, **status: Any) -> bytes:
    """What `describe` returns."""
    changed = replace(REPORT.status, **status)
    return protocol.dumps(replace(REPORT, replica=replica, restarts=restarts, status=changed))


AWAY: dict[str, Any] = {"state": State.RESTARTING, "engine_alive": False, "last_progress_s": 500.0}


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0.005)


async def test_counts_are_those_of_all_replicas_that_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "POLL_S", 0.01)
    monkeypatch.setattr(reports, "RECENT_S", 0.03)
    scripted = Scripted()
    async with worker_over(scripted) as worker:
        for replica, number, total in (("a", 5, 5), ("b", 2, 7), ("a", 6, 8)):
            scripted._describe = report(replica, restarts=number, counts=EngineCounts(number, number / 4))
            await until(lambda total=total: worker.stats.restarts == total)  # type: ignore[misc] # of this turn
            assert worker.status.counts == worker.stats.engine == EngineCounts(total, total / 4)
        await until(lambda: len(worker._reports._recent) == 1)
        assert worker.stats.restarts == worker.stats.engine.preemptions == 8


async def test_where_all_restart_none_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they say so, at once and often, is no progress."""
    monkeypatch.setattr(handle, "POLL_S", 0.02)
    scripted = Scripted(describe=report(**AWAY))
    async with worker_over(scripted) as worker:
        assert [worker.state, worker.status.state] == [State.RESTARTING] * 2
        assert worker.status.last_progress_s >= 500
        fleet = Fleet.of({"m": worker})
        assert [fleet.ready, worker.status.engine_alive] == [False, False]
        scripted._describe = report("b")
        await until(lambda: worker.state is State.READY)
        assert [fleet.ready, worker.status.engine_alive] == [True, True]
        assert worker.status.last_progress_s < 100


async def test_or_have_failed() -> None:
    async with worker_over(Scripted(describe=report(**{**AWAY, "state": State.FAILED}))) as worker:
        assert [worker.state, worker.status.state] == [State.FAILED] * 2
        assert not worker.status.engine_alive


async def test_a_request_goes_out_all_the_same_since_one_may_be_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_run, "DECLINED_WAIT_S", 0.01)
    async with worker_over(Scripted(NOT_NOW, [*WHOLE], describe=report(**AWAY))) as worker:
        assert (await worker.generate(prompt="x")).text == "Hello"
        assert worker.state is State.RESTARTING
        assert worker.status.last_progress_s < 100


async def test_that_one_declines_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_run, "DECLINED_WAIT_S", 0.01)
    async with worker_over(Scripted(NOT_NOW, NOT_NOW, NOT_NOW, describe=report(**AWAY))) as worker:
        with pytest.raises(NotReady):
            await worker.generate(prompt="x")
        assert worker.status.last_progress_s >= 500


async def test_answers_that_come_are_progress() -> None:
    async with worker_over(Scripted([WHOLE[0], 5.0], describe=report(last_progress_s=500.0))) as worker:
        assert worker.status.last_progress_s >= 500
        answer = worker.stream(prompt="x")
        await anext(answer)
        assert worker.status.last_progress_s < 100
        await answer.aclose()
        assert worker.status.last_progress_s < 100


async def test_polls_are_quick_while_the_latest_report_is_of_one_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have reported better before. If they still do, one of them is polled soon."""
    monkeypatch.setattr(handle, "POLL_S", 0.05)
    scripted = Scripted(describe=report("a"))
    async with worker_over(scripted) as worker:
        scripted._describe = report("b", **AWAY)
        await until(lambda: worker._report.replica == "b")
        assert worker.state is State.READY
        monkeypatch.setattr(handle, "POLL_S", 10.0)
        polls = scripted.polls
        await until(lambda: scripted.polls >= polls + 2)


async def test_a_drain_shows_whatever_the_replicas_do() -> None:
    worker = HandleWorker(Scripted(describe=report(**AWAY)), "m")
    worker.start()
    await worker.ready()
    await worker.drain()
    assert [worker.state, worker.status.state] == [State.DRAINING] * 2
    await worker.stop()
    assert [worker.state, worker.status.state] == [State.STOPPED] * 2


async def test_upstreams_and_memory_are_those_of_the_replica_heard_last() -> None:
    fields: dict[str, Any] = {
        "upstreams": (True, False),
        "memory": (DeviceMemory("cpu", 1, 2, 3, 4),),
        "kv_used": 0.5,
        "kv_blocks": KvBlocks(4, 2, 3, 8),
        "threads": ComputeThreads(1, 2),
    }
    async with worker_over(Scripted(describe=report(**fields))) as worker:
        assert {name: getattr(worker.status, name) for name in fields} == fields


async def test_each_ending_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    scripted = Scripted([*WHOLE], [WHOLE[0], ActorDiedError()])
    with caplog.at_level(logging.INFO, "drivetrain.requests"):
        async with worker_over(scripted) as worker:
            await worker.generate(prompt="x", request_id="whole")
            with pytest.raises(EngineFailed):
                await worker.generate(prompt="x", request_id="lost")
            with pytest.raises(Unsupported):
                await worker.generate(prompt="x", request_id="refused", top_k=3)
            with pytest.raises(Unsupported):
                await worker.embed("x")
    lines = [record.getMessage() for record in caplog.records if record.name == "drivetrain.requests"]
    assert lines[-1].startswith("req-"), "what has no id of its own is given one"
    lines[-1] = lines[-1].partition(" ")[2]
    begins = ["whole m finished(length) 3+2", "lost m engine_error 3+2", "refused m unsupported", "m unsupported 0"]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=True)] == begins
    assert "first" in lines[1], "one that failed has its times too"
    assert worker.stats.endings == {"finished": 1, "engine_error": 1, "unsupported": 2}


async def test_what_the_replicas_cannot_do_is_refused_here() -> None:
    scripted = Scripted()
    async with worker_over(scripted) as worker:
        for request, param in (({"top_k": 3}, "top_k"), ({"images": ["/a/b.png"]}, "images")):
            with pytest.raises(Unsupported) as caught:
                await worker.generate(prompt="x", **request)
            assert caught.value.param == param
        with pytest.raises(Unsupported):
            await worker.embed("x")
        assert not scripted.calls
