"""The native engine under the contract, on a tiny random-weight model; and helpers of the engine's own tests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import probe
from contract.rigs import narrowed, started
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.worker.worker import EngineWorker

if TYPE_CHECKING:
    from drivetrain.engines.native.stepper import Output, Stepper

T = TypeVar("T")


class NativeRig:
    """The real engine on a tiny random-weight LLaMA with a byte-level vocabulary."""

    name = "native"
    seeded = True
    exact = True

    def __init__(self, checkpoint: Callable[[str], Path], model: str = "llama") -> None:
        self._checkpoint = checkpoint
        self._model = model

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        """`unsupported` takes parameters away, `options` are settings of the engine itself."""
        unsupported = settings.pop("unsupported", frozenset())
        options = settings.pop("options", {})
        engine = narrowed(NativeEngine, unsupported) if unsupported else NativeEngine()
        model = "llama-infill" if settings.pop("infill", False) else self._model
        spec = ModelSpec(name=model, path=self._checkpoint(model), format=WeightsFormat.SAFETENSORS, options=options)
        with one_thread():
            async with started(engine, spec, settings) as worker:
                yield worker
        assert not engine._thread.alive

    def idle(self, worker: EngineWorker) -> bool:
        engine = engine_of(worker)
        if engine.busy:
            return False
        if engine._stepper is not None:
            engine._stepper.scheduler.check()
            assert engine._stepper.scheduler.pool.num_held == 0
        return True

    def steps(self, worker: EngineWorker) -> int:
        return engine_of(worker).steps_run

    @contextlib.contextmanager
    def fault(self, worker: EngineWorker, at_step: int, error: BaseException) -> Iterator[None]:
        stepper = probe.stepper_of(worker)
        step = 0

        def fail(*_: Any, **__: Any) -> None:
            nonlocal step
            step += 1
            if step > at_step:
                step = 0
                raise error

        handle = stepper.runner.model.register_forward_pre_hook(fail)
        try:
            yield
        finally:
            handle.remove()


def engine_of(worker: EngineWorker) -> NativeEngine:
    engine = probe.engine_of(worker)
    assert isinstance(engine, NativeEngine)
    return engine


async def at_once(worker: EngineWorker, *asking: Coroutine[Any, Any, T]) -> list[T]:
    """The answers of requests that all reach the engine before its next step, however slow the machine."""
    engine, all_here = engine_of(worker), threading.Event()

    def wait(stepper: Stepper) -> list[Output]:
        assert all_here.wait(60)
        return []

    engine._order(wait)
    wanted = engine._requests + len(asking)
    tasks = [asyncio.create_task(one) for one in asking]
    while engine._requests < wanted and not any(task.done() for task in tasks):
        await asyncio.sleep(0.001)
    all_here.set()
    return await asyncio.gather(*tasks)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more, and lose much where other processes want the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
