"""A handle and a replica with the link between them, in one process: what a Ray would do is done by tasks here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from contract.rigs import FakeRig
from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, EngineFailed, NotReady
from drivetrain.core.events import Delta, Event
from drivetrain.scale.ray import event_link, protocol
from drivetrain.scale.ray.handle import HandleWorker
from drivetrain.scale.ray.replica import Replica
from drivetrain.worker.stream import EventStream
from drivetrain.worker.worker import EngineWorker
from probe import runs_of

STREAMS = 16
LONG: dict[str, Any] = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True}


class Call:
    """What Ray does with a streaming call: it runs on the replica's side, and its cancel ends it there."""

    def __init__(self, items: Any) -> None:
        self._items: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(items))
        self.num_items = 0

    async def _run(self, items: Any) -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    self._items.put_nowait(item)
        except Exception as exc:  # noqa: BLE001 - Ray takes any to the caller
            self._items.put_nowait(exc)
        finally:
            self._items.put_nowait(None)

    def cancel(self) -> None:
        self._task.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (item := await self._items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            self.num_items += 1
            yield item


class Method:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


class Near:
    """A handle of one replica in this process."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.calls: list[Call] = []

    def options(self, *, stream: bool) -> Near:
        return self

    @property
    def describe(self) -> Method:
        return Method(lambda: asyncio.ensure_future(self._replica.describe()))

    @property
    def submit(self) -> Method:
        return Method(self._submit)

    def _submit(self, *arguments: Any) -> Call:
        self.calls.append(Call(self._replica.submit(*arguments)))
        return self.calls[-1]


class Opened(Replica):
    def __init__(self, worker: EngineWorker) -> None:
        super().__init__("fake", {})
        self._worker = worker


class Pair:
    def __init__(self, replica: Opened, host: str) -> None:
        self.replica = replica
        self.near = Near(replica)
        self.worker = HandleWorker(self.near, "fake", host=host)

    async def queued(self) -> list[EventStream]:
        """More, of which nothing has come, because they wait in the replica."""
        streams = [self.worker.stream(prompt="x", max_tokens=100, ignore_eos=True) for _ in range(4)]
        self.reading = [asyncio.create_task(read(stream)) for stream in streams]
        await until(lambda: self.replica.worker.status.waiting == len(streams))
        return streams

    async def begun(self, number: int, **more: Any) -> list[EventStream]:
        """So many streams, each with some tokens."""
        streams = [self.worker.stream(**LONG, **more) for _ in range(number)]
        for stream in streams:
            for _ in range(4):
                await anext(stream)
        return streams

    @property
    def at_rest(self) -> bool:
        return not runs_of(self.worker) and not runs_of(self.replica.worker) and not self.replica.worker.status.running

    def cut(self) -> None:
        for connection in list(self.worker._event_server._connections):
            connection.transport.abort()


@asynccontextmanager
async def paired(host: str = "127.0.0.1") -> AsyncIterator[Pair]:
    async with FakeRig().open(max_running=STREAMS) as opened:
        pair = Pair(Opened(opened), host)
        pair.worker.start()
        await pair.worker.ready()
        yield pair
        await until(lambda: pair.at_rest)
        await pair.worker.stop()
        pair.replica._event_client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def read(stream: EventStream) -> tuple[list[Event], DrivetrainError | None]:
    events: list[Event] = []
    try:
        async for event in stream:
            events.append(event)
    except DrivetrainError as exc:
        return events, exc
    return events, None


async def test_events_go_past_the_calls() -> None:
    async with paired() as pair:
        results = await asyncio.gather(*(pair.worker.generate(prompt="x", max_tokens=20) for _ in range(STREAMS)))
        assert {result.usage.completion_tokens for result in results} == {results[0].usage.completion_tokens}
        assert [call.num_items for call in pair.near.calls] == [0] * STREAMS
        assert pair.worker.stats.endings == {"finished": STREAMS}


@pytest.mark.parametrize("host", ["", "203.0.113.1"])
async def test_without_an_address_they_go_by_the_calls(host: str) -> None:
    async with paired() as linked:
        over = await linked.worker.generate(prompt="x", max_tokens=20, temperature=0)
    async with paired(host) as pair:
        assert (await pair.worker.generate(prompt="x", max_tokens=20, temperature=0)).text == over.text
        assert pair.near.calls[0].num_items > 1


async def test_where_the_replica_cannot_connect_they_go_by_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paired() as pair:
        assert pair.worker._event_server._server is not None
        pair.worker._event_server._server.close()
        await pair.worker._event_server._server.wait_closed()
        result = await pair.worker.generate(prompt="x", max_tokens=20)
        assert result.choices[0].finish_reason is not None
        assert pair.near.calls[0].num_items > 1


async def test_a_link_that_breaks_ends_each_stream_once_and_frees_the_replica() -> None:
    async with paired() as pair:
        streams = await pair.begun(STREAMS)
        pair.cut()
        for _, error in await asyncio.gather(*map(read, streams)):
            assert type(error) is EngineFailed
            assert error.partial is not None
            assert error.partial.choices[0].token_ids
        await until(lambda: pair.at_rest)
        assert pair.worker.stats.endings == {"engine_error": STREAMS}
        assert (await pair.worker.generate(prompt="x", max_tokens=5)).usage.completion_tokens == 5
        assert pair.near.calls[-1].num_items == 0, "there is a new link"


async def test_a_link_that_breaks_costs_what_had_not_begun_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.scale.ray.handle_run.DECLINED_WAIT_S", 0.01)
    async with paired() as pair:
        streams = await pair.begun(STREAMS)
        await pair.queued()
        pair.cut()
        await asyncio.gather(*map(read, streams))
        async with asyncio.timeout(4):
            ends = await asyncio.gather(*pair.reading)
        assert [error for _, error in ends] == [None] * 4
        assert pair.worker.stats.endings == {"engine_error": STREAMS, "finished": 4}


class Late(Call):
    """Its end comes first, then what goes over the link."""

    async def _run(self, items: Any) -> None:
        self._items.put_nowait(None)
        await super()._run(items)


async def test_an_end_that_comes_before_the_events_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Call", Late)
    monkeypatch.setattr("drivetrain.scale.ray.handle_run.LAST_EVENTS_S", 0.5)
    async with paired() as pair:
        engine = FakeRig()._engine(pair.replica.worker)
        engine.script = replace(engine.script, step_delay_s=0.05)
        result = await pair.worker.generate(prompt="x", max_tokens=20, ignore_eos=True)
        assert result.usage.completion_tokens == 20


async def test_a_late_decline_is_sent_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Call", Late)
    monkeypatch.setattr("drivetrain.scale.ray.handle_run.DECLINED_WAIT_S", 0.01)
    async with paired() as pair:
        submit, declined = pair.replica.worker.submit, 0

        def decline(request: Any, sink: Any) -> Any:
            nonlocal declined
            declined += 1
            if declined == 1:
                return Declining(sink)
            return submit(request, sink)

        monkeypatch.setattr(pair.replica.worker, "submit", decline)
        async with asyncio.timeout(3):
            assert (await pair.worker.generate(prompt="x", max_tokens=5)).usage.completion_tokens
        assert declined == 2
        assert pair.worker.stats.endings == {"finished": 1}


class Declining:
    """A request whose engine went away while it waited."""

    ended = True

    def __init__(self, sink: Any) -> None:
        error = NotReady("the engine is restarting", retry_after_s=1.0)
        asyncio.get_running_loop().call_later(0.05, sink.fail, error)

    def cancel(self, why: str) -> None:
        pass

    async def released(self) -> None:
        pass


async def test_a_declined_request_does_not_mind_the_link() -> None:
    async with paired() as pair:
        (stream,) = await pair.begun(1)
        (run,) = runs_of(pair.worker)
        run._declined = True
        run.disconnected()
        assert not run.ended
        await stream.aclose()


async def test_whatever_a_call_raises_the_request_has_its_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with paired() as pair:
        with monkeypatch.context() as patched:
            patched.setattr(pair.replica.worker, "submit", lambda *_: 1 / 0)
            _, error = await read(pair.worker.stream(**LONG))
        assert type(error) is EngineFailed
        assert "ZeroDivisionError" in str(error)
        assert "ZeroDivisionError" in caplog.text
        assert (await pair.worker.generate(prompt="x", max_tokens=5)).usage.completion_tokens == 5


async def test_one_bad_event_is_its_own_requests_alone() -> None:
    async with paired() as pair:
        bad, good = await pair.begun(2)
        (number, *_), *_ = pair.worker._event_server._receivers.items()
        pair.worker._event_server._receivers[number].take(protocol.dump_events([Delta(7, "x", (1,))]))
        (_, error), (_, none) = await asyncio.gather(read(bad), read(good))
        assert type(error) is EngineFailed
        assert none is None


async def test_a_replica_whose_caller_went_ends_what_it_did_for_it() -> None:
    async with paired() as pair:
        streams = await pair.begun(STREAMS)
        pair.worker._event_server.close()
        await until(lambda: not pair.replica.worker.status.running)
        for stream in streams:
            _, error = await read(stream)
            assert type(error) is EngineFailed


async def test_one_of_many_is_cancelled_and_the_others_do_not_notice() -> None:
    async with paired() as pair:
        streams = await pair.begun(STREAMS)
        await streams[3].aclose()
        await until(lambda: pair.replica.worker.status.running == STREAMS - 1)
        rest = [stream for index, stream in enumerate(streams) if index != 3]
        for _, error in await asyncio.gather(*map(read, rest)):
            assert error is None
        assert pair.worker.stats.endings == {"finished": STREAMS - 1, "cancelled": 1}


async def test_errors_of_the_replica_come_by_the_link_too() -> None:
    async with paired() as pair:
        stream = pair.worker.stream(**LONG)
        await anext(stream)
        for run in list(runs_of(pair.replica.worker)):
            run.interrupt(Cancelled("the worker shut down before this request finished"))
        _, error = await read(stream)
        assert type(error) is Cancelled
        assert "shut down" in str(error)
        assert pair.near.calls[0].num_items == 0


async def test_a_deadline_of_the_caller_ends_it_in_the_replica() -> None:
    async with paired() as pair:
        stream = pair.worker.stream(**LONG, timeout_s=0.05)
        _, error = await read(stream)
        assert type(error) is DeadlineExceeded


async def test_a_reader_that_stops_is_cancelled_and_the_link_goes_on() -> None:
    async with paired() as pair:
        (slow,) = await pair.begun(1)
        assert (await pair.worker.generate(prompt="x", max_tokens=30)).usage.completion_tokens == 30
        del slow
        await until(lambda: pair.at_rest)


async def test_an_ending_that_does_not_come_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.scale.ray.handle_run.LAST_EVENTS_S", 0.05)
    async with paired() as pair:
        (stream,) = await pair.begun(1)
        monkeypatch.setattr(event_link.EventServer, "dispatch", lambda *_: None)
        pair.near.calls[0].cancel()
        _, error = await read(stream)
        assert type(error) is EngineFailed


@pytest.mark.parametrize(
    "case",
    [
        test_events_go_past_the_calls,
        test_a_link_that_breaks_ends_each_stream_once_and_frees_the_replica,
        test_one_of_many_is_cancelled_and_the_others_do_not_notice,
        test_a_replica_whose_caller_went_ends_what_it_did_for_it,
    ],
)
def test_on_the_event_loop_that_serve_runs(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(case())
