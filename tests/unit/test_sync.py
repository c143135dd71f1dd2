"""The blocking face at its edges."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import IO, Any

import pytest

import drivetrain
from drivetrain.core.engine import EngineInfo, ModelSpec, Progress
from drivetrain.core.errors import Cancelled, NotReady
from drivetrain.engines.fake import FakeEngine


def test_before_it_is_opened_and_after_it_is_closed() -> None:
    worker = drivetrain.sync.Worker.open("fake")
    worker.close()
    for call in (
        lambda: worker.generate(prompt="x"),
        lambda: worker.stream(prompt="x"),
        lambda: worker.count_tokens("x"),
        lambda: worker.metadata,
    ):
        with pytest.raises(NotReady):
            call()
    with worker:
        stream = worker.stream(prompt="x", max_tokens=3)
        next(stream)
    worker.close()
    with pytest.raises(NotReady):
        worker.generate(prompt="x")
    with pytest.raises(Cancelled):
        next(stream)
    stream.close()
    with pytest.raises(NotReady), worker:
        pass


def test_many_threads_share_one_worker() -> None:
    with drivetrain.sync.Worker.open("fake") as worker:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(worker.generate(prompt="x", max_tokens=9, temperature=0).text))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert texts == ["The quick"] * 8


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
def test_the_status_is_read_while_requests_come_and_go() -> None:
    with drivetrain.sync.Worker.open("fake") as worker:
        ended = threading.Event()

        def ask() -> None:
            try:
                for _ in range(25):
                    streams = [worker.stream(prompt="x", max_tokens=2) for _ in range(8)]
                    for stream in streams:
                        list(stream)
            finally:
                ended.set()

        asking = threading.Thread(target=ask)
        asking.start()
        most = 0.0
        while not ended.is_set():
            most = max(most, worker.status.kv_used)
        asking.join(20)
        assert 0 < most < 1
        assert worker.status.endings["finished"] == 200


@pytest.mark.usefixtures("switching_often")
def test_calls_of_other_threads_end_when_it_is_closed() -> None:
    """At whatever moment they come: none waits for a loop that has ended."""
    for round_ in range(20):
        worker = drivetrain.sync.Worker.open("fake")
        worker.__enter__()
        answers: list[str] = []

        def ask(worker: drivetrain.sync.Worker, answers: list[str]) -> None:
            try:
                while True:
                    answers.append(worker.generate(prompt="x", max_tokens=2).text)
            except (Cancelled, NotReady) as exc:
                answers.append(exc.code)

        threads = [threading.Thread(target=ask, args=(worker, answers), daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.002 * round_)
        closing = [threading.Thread(target=worker.close, daemon=True) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in (*threads, *closing):
            thread.join(20)
            assert not thread.is_alive()
        assert sum(answer in {"cancelled", "not_ready"} for answer in answers) == len(threads), answers


def test_on_the_thread_of_its_own_loop_it_refuses_to_wait() -> None:
    """It would wait for itself, and everybody with it. An abandoned stream may be closed there, by the collector."""
    with drivetrain.sync.Worker.open("fake") as worker:
        engine = worker._worker.engine
        assert isinstance(engine, FakeEngine)
        engine.script = replace(engine.script, step_delay_s=0.01)
        stream = worker.stream(prompt="x", max_tokens=3000)
        next(stream)

        async def on_the_loop() -> str:
            stream.close()
            try:
                worker.generate(prompt="x")
            except RuntimeError as exc:
                return str(exc)
            return ""

        assert worker._loop is not None
        assert "wait for itself" in worker._loop.wait(on_the_loop)
        end = time.monotonic() + 10
        while worker.status.running:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert worker.status.endings["cancelled"] == 1


def test_an_end_that_is_interrupted_may_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it waits for the thread; and a signal's handler may ask within the call that does it."""
    worker = drivetrain.sync.Worker.open("fake")
    worker.__enter__()
    assert worker._loop is not None
    loop, thread = worker._loop, worker._loop._thread
    real = thread.join

    def interrupted() -> None:
        worker.close()
        real()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.close()
    assert not loop._loop.is_closed()
    worker.close()
    assert loop._loop.is_closed()


def test_an_interrupt_while_opening_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = threading.Event()

    async def slow(self: FakeEngine, spec: ModelSpec, progress: Progress) -> EngineInfo:
        import asyncio

        loading.set()
        await asyncio.sleep(60)
        raise AssertionError("it was interrupted")

    monkeypatch.setattr(FakeEngine, "load", slow)

    def interrupted(loop: Any, work: Any) -> Any:
        import asyncio

        future: Any = asyncio.run_coroutine_threadsafe(work(), loop._loop)
        loading.wait(10)
        future.cancel()
        raise KeyboardInterrupt

    monkeypatch.setattr(drivetrain.sync._Loop, "wait", interrupted)
    before = threading.active_count()
    worker = drivetrain.sync.Worker.open("fake")
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        worker.__enter__()
    assert time.monotonic() - started < 10
    assert threading.active_count() <= before


def test_an_interrupt_before_the_call_reaches_the_loop_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No coroutine that nobody awaits (it would warn, and a warning is an error here), and the next call works."""
    with drivetrain.sync.Worker.open("fake") as worker:
        stream = worker.stream(prompt="x", max_tokens=3)
        assert worker._loop is not None
        for call in (lambda: next(stream), lambda: worker.generate(prompt="x"), stream.close):
            with monkeypatch.context() as patch:
                patch.setattr(worker._loop._loop, "call_soon_threadsafe", _interrupted)
                with pytest.raises(KeyboardInterrupt):
                    call()
            gc.collect()
        assert len(list(stream)) > 1
        assert worker.generate(prompt="x", max_tokens=3).usage.completion_tokens == 3


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


SLOW_TO_CLOSE = """
import asyncio, signal, threading
import drivetrain
from drivetrain.engines.fake import FakeEngine

signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests themselves run in the background
close = FakeEngine.close

async def slow(self):
    print("closing", flush=True)
    await asyncio.sleep({seconds})
    await close(self)
    print("closed", flush=True)

FakeEngine.close = slow
"""


@contextlib.contextmanager
def _child(code: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process that must end well, and what it prints."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout
            assert child.wait(60) == 0
        finally:
            child.kill()


STOPPING = """
try:
    {how}
except KeyboardInterrupt:
    print("interrupted", worker.status.state, flush=True)
print([thread.name for thread in threading.enumerate()], flush=True)
"""


@pytest.mark.parametrize("how", ["worker.close()", "worker.__exit__(None, None, None)"])
def test_an_interrupt_while_it_stops_lets_it_stop(how: str) -> None:
    """A real one, in a process of its own: the engine is closed to its end before the caller hears of it."""
    opened = 'worker = drivetrain.sync.Worker.open("fake").__enter__()'
    with _child(SLOW_TO_CLOSE.format(seconds=1.5) + opened + STOPPING.format(how=how)) as (child, out):
        assert out.readline() == "closing\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        assert out.read().splitlines() == ["closed", "interrupted stopped", "['MainThread']"]


def test_a_second_interrupt_leaves_at_once_and_the_stop_goes_on() -> None:
    opened = 'worker = drivetrain.sync.Worker.open("fake").__enter__()'
    again = """
print("and again", flush=True)
worker.close()
print([thread.name for thread in threading.enumerate()], flush=True)
"""
    with _child(SLOW_TO_CLOSE.format(seconds=5) + opened + STOPPING.format(how="worker.close()") + again) as (
        child,
        out,
    ):
        assert out.readline() == "closing\n"
        for _ in range(2):
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
        assert out.readline().startswith("interrupted ")
        assert "drivetrain-sync" in out.readline()
        assert out.read().splitlines() == ["and again", "closed", "['MainThread']"]


def test_an_interrupt_while_it_loads_closes_the_engine_to_its_end() -> None:
    loads = """
async def load(self, spec, progress):
    print("loading", flush=True)
    await asyncio.sleep(60)

FakeEngine.load = load
try:
    drivetrain.sync.Worker.open("fake").__enter__()
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate()], flush=True)
"""
    with _child(SLOW_TO_CLOSE.format(seconds=2) + loads) as (child, out):
        assert out.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        assert out.read().splitlines() == ["closing", "closed", "['MainThread']"]


FORKING = """
import os
import drivetrain
from drivetrain.core.errors import NotReady

with drivetrain.sync.Worker.open("fake") as worker:
    stream = worker.stream(prompt="x", max_tokens=3)
    calls = {
        "generate": lambda: worker.generate(prompt="x"),
        "stream": lambda: worker.stream(prompt="x"),
        "count_tokens": lambda: worker.count_tokens("x"),
        "embed": lambda: worker.embed("x"),
        "rerank": lambda: worker.rerank("x", ["y"]),
        "metadata": lambda: worker.metadata,
        "capabilities": lambda: worker.capabilities,
        "status": lambda: worker.status,
        "__enter__": worker.__enter__,
        "__exit__": lambda: worker.__exit__(None, None, None),
        "close": worker.close,
        "next": lambda: next(stream),
        "result": stream.result,
        "stream.close": stream.close,
    }
    if (child := os.fork()) == 0:
        for name, call in calls.items():
            try:
                call()
            except NotReady as exc:
                assert "belongs to the process that started it" in exc.message, name
                print(name, flush=True)
        with drivetrain.sync.Worker.open("fake") as own:
            print(own.generate(prompt="x", max_tokens=2, temperature=0).text, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), len(list(stream)) > 1)
"""


def test_a_forked_child_is_told_that_the_worker_is_not_its_own() -> None:
    """It has no loop's thread, and would wait for ever. One that it opens itself works, as does the parent's still."""
    with _child(FORKING) as (_, out):
        *named, text, last = out.read().splitlines()
    assert named == [
        "generate", "stream", "count_tokens", "embed", "rerank", "metadata", "capabilities", "status", "__enter__",
        "__exit__", "close", "next", "result", "stream.close",
    ]  # fmt: skip
    assert text == "Th"
    assert last == "0 True"
    public = {name for name in vars(drivetrain.sync.Worker) if not name.startswith("_")} - {"open"}
    assert public <= set(named)


def test_a_stop_that_ends_as_cancelled_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled(self: FakeEngine) -> None:
        raise asyncio.CancelledError

    worker = drivetrain.sync.Worker.open("fake")
    worker.__enter__()
    monkeypatch.setattr(FakeEngine, "close", cancelled)
    ended = threading.Thread(target=lambda: _swallow(worker.close), daemon=True)
    ended.start()
    ended.join(20)
    assert not ended.is_alive()


def _swallow(call: Callable[[], None]) -> None:
    with contextlib.suppress(drivetrain.errors.DrivetrainError):
        call()
