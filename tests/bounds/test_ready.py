"""Ready means that requests succeed: an engine that fails all of them is replaced, or says that it cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import drivetrain
from bounds.attack import eventually
from drivetrain.core.engine import (
    EmbedItem,
    Engine,
    EngineInfo,
    EngineRequest,
    Health,
    ModelSpec,
    Progress,
    StepSink,
    WeightsFormat,
)
from drivetrain.core.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
)
from drivetrain.core.events import Delta
from drivetrain.core.status import State
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.scale.ray import protocol
from drivetrain.telemetry import memory
from drivetrain.worker.health import closing, supervisor, watchdog
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from probe import engine_of, model_of, pid_of
from server.fleet_serving import fake_offer, serving_fleet
from server.serving import serving

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
STEADY = Script(repeat=True, step_delay_s=0.005)
BROKEN = Script(repeat=True, fault=RuntimeError("it broke"))
ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
LOST = (
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other call"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.worker.worker.WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr("drivetrain.worker.health.revival.FIRST_S", 0.05)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


async def outcome(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except DrivetrainError as exc:
        return exc


async def read_until_delta(stream: Any) -> None:
    async for event in stream:
        if isinstance(event, Delta):
            return


def worker_of(*engines: Engine, **settings: Any) -> EngineWorker:
    """The first one serves; the others take its place one after the other."""
    coming = list(engines)
    return EngineWorker(coming.pop(0), SPEC, Settings(**settings), remake=lambda: coming.pop(0))


# Failures in a row, without a token


async def test_an_engine_that_fails_every_request_is_replaced() -> None:
    async with worker_of(FakeEngine(BROKEN), FakeEngine(STEADY)) as worker:
        for _ in range(watchdog.TIMES_FAILED):
            assert worker.state is State.READY
            assert isinstance(await outcome(worker.generate(prompt="x")), EngineFailed)
        await until(lambda: worker.stats.restarts == 1)
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


async def test_a_real_model_that_fails_every_request_is_replaced(checkpoint: Callable[[str], Path]) -> None:
    async with drivetrain.Worker.open(checkpoint("llama"), engine="native", dtype="float32") as worker:
        broken = engine_of(worker)
        _fail_passes(broken, "a kernel gave up")
        for _ in range(watchdog.TIMES_FAILED):
            assert isinstance(await outcome(worker.generate(prompt="x", max_tokens=3)), EngineFailed)
        await until(lambda: worker.stats.restarts == 1)
        assert engine_of(worker) is not broken
        assert (await worker.generate(prompt="x", max_tokens=3, ignore_eos=True)).usage.completion_tokens == 3


async def test_what_does_not_count() -> None:
    """Refusals, clients that leave and deadlines are no failures, and hide none; an answer is what clears them."""

    def reply(request: EngineRequest) -> tuple[int, ...]:
        if request.max_tokens == 1:
            raise RuntimeError("this one breaks")
        return (65,)

    async with worker_of(
        FakeEngine(Script(repeat=True, step_delay_s=0.005, reply=reply)), FakeEngine(STEADY)
    ) as worker:
        for _ in range(3 * watchdog.TIMES_FAILED):
            assert isinstance(await outcome(worker.generate(prompt="x" * 5000)), InvalidRequest)
            assert isinstance(
                await outcome(worker.generate(prompt="x", max_tokens=4000, timeout_s=0.01)), DrivetrainError
            )
            assert isinstance(await outcome(worker.generate(prompt="x", max_tokens=1)), EngineFailed)
            await worker.generate(prompt="x", max_tokens=2)
        await asyncio.sleep(0.2)
        assert (worker.state, worker.stats.restarts) == (State.READY, 0)


def test_failures_in_a_row() -> None:
    dog, well = watchdog.Watchdog(10.0), Health(True, 1, 0.0)
    for error in [EngineFailed("x"), Cancelled("x"), InvalidRequest("x"), DeadlineExceeded("x"), NotReady("x")] * 5:
        dog.ended(error)
    dog.ended(None)
    for num in range(1, watchdog.TIMES_FAILED + 1):
        assert dog.doubt(well) == ""
        dog.ended(Cancelled("x"))
        dog.ended(EngineFailed("x"), tokens=0)
        assert bool(dog.doubt(well)) == (num == watchdog.TIMES_FAILED)
    assert dog.doubt(well, tokens=1) == "", "a token of any request is a sign of life"
    assert dog.doubt(replace(well, mends_itself=True)) == ""
    assert dog.complaint(well, wanted=False) == "", "the requests may be at fault"
    dog.trust()
    assert dog.doubt(well) == ""


async def test_requests_that_are_at_fault_themselves_do_not_have_the_engine_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever finds one could have the model loaded again and again, under everybody else."""
    asked: list[str] = []

    def reply(request: EngineRequest) -> tuple[int, ...]:
        asked.append(request.request_id)
        if len(request.prompt_ids) > 1:
            raise RuntimeError("this one breaks")
        return (65,)

    engine = FakeEngine(Script(repeat=True, reply=reply))
    async with worker_of(engine, FakeEngine(STEADY)) as worker:
        for round_ in (1, 2):
            for _ in range(watchdog.TIMES_FAILED):
                assert isinstance(await outcome(worker.generate(prompt="breaks")), EngineFailed)
            await until(lambda num=round_: caplog.text.count("so these are at fault") == num)  # type: ignore[misc]
        assert (worker.state, worker.stats.restarts) == (State.READY, 0)
        assert asked.count("probe") == 2
        assert worker.stats.endings == {"engine_error": 2 * watchdog.TIMES_FAILED}
        await until(lambda: engine.health().active == 0)


class NoVectors(FakeEngine):
    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        raise EngineFailed("the model gave no usable embedding for this text")


@pytest.mark.parametrize(("script", "restarts"), [(STEADY, 0), (BROKEN, 1)])
async def test_texts_without_a_vector_have_a_broken_engine_replaced_only(
    caplog: pytest.LogCaptureFixture, script: Script, restarts: int
) -> None:
    async with worker_of(NoVectors(script), FakeEngine(STEADY)) as worker:
        for _ in range(watchdog.TIMES_FAILED):
            assert isinstance(await outcome(worker.embed("x")), EngineFailed)
        await until(lambda: "so these are at fault" in caplog.text or worker.stats.restarts == 1)
        assert (worker.state, worker.stats.restarts) == (State.READY, restarts)


@pytest.mark.parametrize(("engine", "sound"), [(FakeEngine, True), (NoVectors, False)])
async def test_a_model_without_answers_is_asked_for_a_vector(engine: type[FakeEngine], sound: bool) -> None:
    made = engine(STEADY)
    info = await made.load(SPEC, lambda what, share: None)
    info = replace(info, scorer=None, capabilities=replace(info.capabilities, generation=False))
    assert await watchdog.answers(made, info) is sound
    await made.close()


async def test_one_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PROBE_S", 0.05)

    class Silent(FakeEngine):
        def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
            self.script = replace(BROKEN, fault=None, hang_at_step=0) if request.request_id == "probe" else BROKEN
            return super().generate(request, sink)

    async with worker_of(Silent(BROKEN), FakeEngine(STEADY)) as worker:
        for _ in range(watchdog.TIMES_FAILED):
            assert isinstance(await outcome(worker.generate(prompt="x")), EngineFailed)
        await until(lambda: worker.stats.restarts == 1)


async def test_one_that_gave_others_tokens_meanwhile_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have had no place for the question."""
    asked: list[Engine] = []
    async with worker_of(FakeEngine(BROKEN), FakeEngine(STEADY)) as worker:

        async def too_busy(engine: Engine, info: EngineInfo) -> bool | None:
            asked.append(engine)
            worker.stats.completion_tokens += 1
            return None

        monkeypatch.setattr(supervisor, "answers", too_busy)
        for _ in range(watchdog.TIMES_FAILED):
            assert isinstance(await outcome(worker.generate(prompt="x")), EngineFailed)
        await until(lambda: bool(asked))
        assert (worker.state, worker.stats.restarts) == (State.READY, 0)


# Errors that stick to the device


def _fail_passes(engine: Any, message: str, *, times: int = 1_000_000) -> None:
    """Passes of the real model raise this, so many; those of a later engine do not."""
    left = iter(range(times))

    def hook(*_: Any) -> None:
        if next(left, None) is not None:
            raise RuntimeError(message)

    model_of(engine).base_model.register_forward_pre_hook(hook)


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_a_device_that_is_lost_ends_every_request_and_the_worker(
    checkpoint: Callable[[str], Path], engine: str
) -> None:
    """Here one pass fails only: that the next ones would be well on this device is not to be tried."""
    async with drivetrain.Worker.open(checkpoint("llama"), engine=engine, dtype="float32", max_running=2) as worker:
        served = engine_of(worker)
        _fail_passes(served, LOST, times=1)
        asked = [asyncio.ensure_future(outcome(worker.generate(**ENDLESS))) for _ in range(5)]
        found = await asyncio.gather(*asked)
        assert any(isinstance(error, DeviceLost) for error in found)
        assert all(isinstance(error, (DeviceLost, EngineFailed, NotReady)) for error in found)
        await until(lambda: worker.state is State.FAILED)
        assert (worker.status.lost, worker.status.engine_alive, worker.stats.restarts) == (True, False, 0)
        assert engine_of(worker) is served
        with pytest.raises(NotReady, match=r"device has failed.*restart the process"):
            await worker.generate(prompt="x")


@pytest.mark.parametrize("engine", ["native", "transformers"])
async def test_an_embedding_may_tell_it(checkpoint: Callable[[str], Path], engine: str) -> None:
    async with drivetrain.Worker.open(checkpoint("llama"), engine=engine, dtype="float32") as worker:
        _fail_passes(engine_of(worker), LOST, times=1)
        assert isinstance(await outcome(worker.embed("x")), DeviceLost)
        await until(lambda: worker.state is State.FAILED)


def test_a_server_whose_device_is_lost_asks_for_a_new_process(checkpoint: Callable[[str], Path]) -> None:
    def opened() -> AbstractAsyncContextManager[EngineWorker]:
        return drivetrain.Worker.open(checkpoint("llama"), engine="native", dtype="float32")

    with serving(opened) as served:
        assert served.request("GET", "/health")[0] == 200
        _fail_passes(engine_of(served.worker), LOST, times=1)
        status, document = served.post("/v1/completions", {"model": served.model, "prompt": "x"})
        assert (status, document["error"]["code"]) == (500, "device_lost")
        eventually(lambda: served.request("GET", "/health")[0] == 503)
        assert served.request("GET", "/ready")[0] == 503
        status, document = served.post("/v1/completions", {"model": served.model, "prompt": "x"})
        assert (status, document["error"]["code"]) == (503, "not_ready")
        assert "restart the process" in document["error"]["message"]


def test_so_does_one_that_loads_and_unloads_models() -> None:
    """Also once the model at fault has been unloaded: the process has lost its device all the same."""
    lost = {"fault": DeviceLost("the device has failed")}
    with serving_fleet(fake_offer("a", script=lost), fake_offer("b")) as served:
        assert served.ask("GET", "/health")[0] == 200
        assert served.complete("a")[0] == 500
        eventually(lambda: served.ask("GET", "/health")[0] == 503)
        eventually(lambda: served.states()["a"] in {"failed", "unloaded"})
        assert [served.ask("GET", path)[0] for path in ("/health", "/ready")] == [503, 503]


@pytest.mark.parametrize(
    "message",
    [
        LOST,
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA error: misaligned address",
        "HIP error: unspecified launch failure",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    ],
)
def test_which_errors_stick(message: str) -> None:
    for translated in (
        errors.while_running(RuntimeError(message)),
        errors.while_loading(RuntimeError(message), engine="x"),
    ):
        assert type(translated) is DeviceLost
        assert isinstance(protocol.load_events(protocol.dump_failure(translated))[1][0], DeviceLost)  # type: ignore[index] # it has one


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("the prompt says: device-side assert, illegal memory access"),
        ValueError(LOST),
    ],
)
def test_which_do_not(error: Exception) -> None:
    assert not isinstance(errors.while_running(error), DeviceLost)


# A revival that goes wrong


class Unusable(FakeEngine):
    """Loads, and what it tells of itself cannot be made use of."""

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        info = await super().load(spec, progress)
        object.__setattr__(info, "default_sampling", 7)
        return info


class Gated(FakeEngine):
    """Loads when it may."""

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__(STEADY)
        self._gate = gate

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        await self._gate.wait()
        return await super().load(spec, progress)


class Lost(FakeEngine):
    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        await super().load(spec, progress)
        raise DeviceLost("the device has failed")


class Dumb(FakeEngine):
    """Cannot even say how it is."""

    def health(self) -> Health:
        if self._dead:
            raise RuntimeError("no answer")
        return super().health()


@pytest.mark.parametrize(("next_one", "lost"), [(Unusable, False), (Lost, True)])
async def test_one_that_cannot_be_used_in_its_place(next_one: type[FakeEngine], lost: bool) -> None:
    before = asyncio.all_tasks()
    first, second = FakeEngine(STEADY), next_one(STEADY)
    worker = worker_of(first, second, max_running=1)
    await worker.start()
    stream = worker.stream(**ENDLESS)
    await read_until_delta(stream)
    waiting = asyncio.ensure_future(outcome(worker.generate(prompt="x")))
    await until(lambda: worker.status.waiting == 1)
    first.die()
    await until(lambda: worker.state is State.FAILED)
    assert isinstance(await waiting, NotReady)
    with pytest.raises(NotReady, match="restart the process"):
        await worker.generate(prompt="x")
    await until(lambda: not second.health().alive)
    assert (worker.status.lost, worker.stats.restarts) == (lost, 0)
    await stream.aclose()
    await worker.stop()
    assert asyncio.all_tasks() <= before


async def test_one_that_cannot_say_how_it_is_is_replaced() -> None:
    first = Dumb(STEADY)
    async with worker_of(first, FakeEngine(STEADY)) as worker:
        first.die()
        await until(lambda: worker.stats.restarts == 1)
        assert (await worker.generate(prompt="x", max_tokens=3)).usage.completion_tokens == 3


# Who waits when an engine dies


async def test_the_line_waits_for_the_next_engine() -> None:
    first, gate = FakeEngine(STEADY), asyncio.Event()
    async with worker_of(first, Gated(gate), max_running=1, max_waiting=3) as worker:
        stream = worker.stream(**ENDLESS)
        await read_until_delta(stream)
        waiting = [asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3)))]
        await until(lambda: worker.status.waiting == 1)
        first.die()
        await until(lambda: worker.state is State.RESTARTING)
        assert isinstance(await outcome(worker.generate(prompt="x", timeout_s=0.01)), DeadlineExceeded)
        waiting += [asyncio.ensure_future(outcome(worker.generate(prompt="x", max_tokens=3))) for _ in range(2)]
        await until(lambda: worker.status.waiting == 3)
        for more in (worker.embed("x"), worker.generate(prompt="x")):
            assert isinstance(await outcome(more), Overloaded), "the line is no longer than at any time"
        assert worker.state is State.RESTARTING
        gate.set()
        assert [answer.usage.completion_tokens for answer in await asyncio.gather(*waiting)] == [3, 3, 3]
        assert (worker.state, worker.stats.restarts) == (State.READY, 1)
        await outcome(stream.aclose())


async def test_a_worker_that_drains_meanwhile_refuses_at_once() -> None:
    first, never = FakeEngine(STEADY), FakeEngine(Script(load_error=RuntimeError("never")))
    worker = worker_of(first, *[never] * 100)
    await worker.start()
    first.die()
    await until(lambda: worker.state is State.RESTARTING)
    waiting = asyncio.ensure_future(outcome(worker.generate(prompt="x")))
    await until(lambda: worker.status.waiting == 1)
    await worker.drain(60)
    assert isinstance(await waiting, NotReady)
    with pytest.raises(NotReady):
        await worker.generate(prompt="x")
    await worker.stop()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_llamacpp_killed_under_load(smollm2: str) -> None:
    settings: dict[str, Any] = {"context_length": 1024, "slots": 2, "max_waiting": 4}
    async with drivetrain.Worker.open(smollm2, engine="llamacpp", **settings) as worker:
        streams = [worker.stream(**ENDLESS) for _ in range(2)]
        for stream in streams:
            await read_until_delta(stream)
        short = {**ENDLESS, "max_tokens": 3}
        waiting = [asyncio.ensure_future(worker.generate(**short)) for _ in range(3)]
        await until(lambda: worker.status.waiting == 3)
        engine: Any = engine_of(worker)
        os.kill(pid_of(engine), signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineFailed):
                async for _ in stream:
                    assert all(each.allocated_bytes >= 0 for each in worker.status.memory)
        await until(lambda: worker.state is State.RESTARTING)
        waiting.append(asyncio.ensure_future(worker.generate(**short)))
        async with asyncio.timeout(300):
            answers = await asyncio.gather(*waiting)
        assert [answer.usage.completion_tokens for answer in answers] == [3] * 4
        assert worker.stats.restarts == 1


# The end of an engine


class Stubborn(FakeEngine):
    """Keeps what it runs, and its end does not come by itself."""

    async def close(self) -> None:
        self._running.clear()
        await asyncio.Event().wait()


async def test_an_engine_that_does_not_end_does_not_keep_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_S", 0.2)
    monkeypatch.setattr("drivetrain.worker.worker.ABORT_WAIT_S", 0.2)
    engine = Stubborn(Script(repeat=True, hang_at_step=3))
    worker = worker_of(engine)
    await worker.start()
    stream = worker.stream(**ENDLESS)
    await read_until_delta(stream)
    async with asyncio.timeout(30):
        await worker.stop(0.1)
    assert worker.state is State.STOPPED
    await FakeEngine.close(engine)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_ends_whose_llamacpp_is_stopped(smollm2: str) -> None:
    """`kill -STOP` of its children, and SIGTERM: 3 seconds where it took 26. Twenty are for a busy machine."""
    options = ("--engine", "llamacpp", "--port", "0", "--drain-s", "1", "--context-length", "1024")
    command = [sys.executable, "-m", "drivetrain", "serve", smollm2, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            greeting = ""
            while (found := re.search(r"http://[\d.:]+", greeting)) is None:
                greeting += server.stdout.readline()
            threading.Thread(target=server.stdout.read, daemon=True).start()
            body = json.dumps({"model": smollm2, **ENDLESS, "max_tokens": 900, "stream": True}).encode()
            asked = urllib.request.Request(
                f"{found.group()}/v1/completions", body, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=120) as answer:
                assert answer.readline().startswith(b"data: ")
                children = _children(server.pid)
                for child in children:
                    os.kill(child, signal.SIGSTOP)
                server.terminate()
                began = time.monotonic()
                server.wait(120)
                took_s = time.monotonic() - began
            assert children
            assert not any(Path(f"/proc/{child}").exists() for child in children)
            assert took_s < 20
        finally:
            server.kill()


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid]


# What is told meanwhile


def test_no_memory_is_less_than_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The system adds a process's pages up from parts, which may be short of one another while it ends."""
    (tmp_path / "statm").write_text("100 -3 0 0 0 0 0\n")

    def opened(path: str, *rest: Any, **more: Any) -> Any:
        return open(tmp_path / "statm" if path.endswith("statm") else path, *rest, **more)

    monkeypatch.setattr(memory, "open", opened, raising=False)
    assert memory.host_memory(1, "llama.cpp").allocated_bytes == 0


def test_a_process_that_is_gone_holds_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child.kill()
    seen = [memory.host_memory(child.pid).allocated_bytes for _ in range(500)]
    child.wait()
    seen += [memory.host_memory(child.pid).allocated_bytes for _ in range(50)]
    assert min(seen) >= 0
    assert seen[-1] == 0
