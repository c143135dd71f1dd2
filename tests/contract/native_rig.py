"""The native engine under the contract, on a tiny random-weight model; and helpers of the engine's own tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.native.engine import NativeEngine
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import Worker


class NativeRig:
    """The real engine on a tiny random-weight LLaMA with a byte-level vocabulary."""

    name = "native"
    seeded = True
    exact = True

    def __init__(self, checkpoint: Callable[[str], Path], model: str = "llama") -> None:
        self._checkpoint = checkpoint
        self._model = model

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[Worker]:
        """`unsupported` takes parameters away, `options` are settings of the engine itself."""
        unsupported = settings.pop("unsupported", frozenset())
        options = settings.pop("options", {})
        engine = _narrowed(unsupported) if unsupported else NativeEngine()
        folder = self._checkpoint(self._model)
        spec = ModelSpec(name=self._model, path=folder, format=WeightsFormat.SAFETENSORS, options=options)
        worker = Worker(engine, spec, Settings(**settings))
        with one_thread():
            await worker.start()
            try:
                yield worker
            finally:
                await worker.stop()
        assert not engine._thread.alive

    def idle(self, worker: Worker) -> bool:
        engine = self._engine(worker)
        if engine.busy:
            return False
        if engine._stepper is not None:
            engine._stepper.scheduler.check()
            assert engine._stepper.scheduler.rows.num_hot == 0
        return True

    def steps(self, worker: Worker) -> int:
        return self._engine(worker).steps_run

    @contextlib.contextmanager
    def fault(self, worker: Worker, at_step: int, error: BaseException) -> Iterator[None]:
        stepper = self._engine(worker)._stepper
        assert stepper is not None
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

    def _engine(self, worker: Worker) -> NativeEngine:
        engine = worker._engine
        assert isinstance(engine, NativeEngine)
        return engine


def _narrowed(unsupported: frozenset[str]) -> NativeEngine:
    class Narrowed(NativeEngine):
        """The same engine, declaring less: what it does not declare must be refused by name."""

        async def load(self, spec: Any, progress: Any) -> Any:
            info = await super().load(spec, progress)
            parameters = info.capabilities.parameters - unsupported
            return replace(info, capabilities=replace(info.capabilities, parameters=parameters))

    return Narrowed()


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
