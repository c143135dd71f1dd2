"""The vllm engine under the contract, on a shallow model in float32. vLLM is started once for all workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from contract.filling import filling_folder
from contract.rigs import narrowed, started
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.vllm.core import Core, VllmModel, Widened
from drivetrain.engines.vllm.engine import VllmEngine
from drivetrain.engines.vllm.generation import VllmGeneration
from drivetrain.engines.vllm.options import engine_arguments
from drivetrain.worker.worker import EngineWorker
from probe import engine_of

MODEL = "smollm2"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "context_length": 2048,
    "kv_cache_gb": 1.0,
    "max_batch": 16,
    "vllm_args": {"enforce_eager": True},
}


def spec_with(folder: Path, **changes: Any) -> ModelSpec:
    """This model with the settings of these tests, some of them changed."""
    return ModelSpec(name=MODEL, path=folder, format=WeightsFormat.SAFETENSORS, options={**SETTINGS, **changes})


class KeptCore:
    """One running vLLM for many engines: closing it leaves it running."""

    def __init__(self, core: Core, loaded: VllmModel) -> None:
        self.core = core
        self._loaded = loaded
        self._closed = False
        self.on_death: Callable[[], None] = lambda: None
        self.seen = core.seen

    @property
    def alive(self) -> bool:
        return not self._closed and self.core.alive

    async def start(self) -> VllmModel:
        self.core.on_death = lambda: self.on_death()
        return self._loaded

    async def widen(self, prompt: tuple[int, ...], images: tuple[Any, ...], cache_salt: str | None) -> Widened:
        return await self.core.widen(prompt, images, cache_salt)

    def outputs(
        self, prompt: tuple[int, ...] | Widened, cache_salt: str | None, parameters: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        return self.core.outputs(prompt, cache_salt, parameters, request_id)

    async def let_go(self, request_ids: Iterable[str]) -> None:
        await self.core.let_go(request_ids)

    async def close(self) -> None:
        self._closed = True


class KeptEngine(VllmEngine):
    """Its vLLM is the one of the rig."""

    rig: VllmRig

    def __init__(self) -> None:
        super().__init__(self.rig.core_of)


class VllmRig:
    name = "vllm"
    seeded = True
    exact = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._core: Core | None = None
        self._loaded: VllmModel | None = None
        KeptEngine.rig = self

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        unsupported = settings.pop("unsupported", frozenset())
        infill = settings.pop("infill", False)
        engine = narrowed(KeptEngine, unsupported) if unsupported else KeptEngine()
        spec = spec_with(self._folder)
        if self._loaded is None:
            await self._start(spec)
        with self._filling(spec) if infill else contextlib.nullcontext(spec) as read:
            async with started(engine, read, settings) as worker:
                yield worker
        assert not engine.health().alive
        assert not engine.busy

    @contextlib.contextmanager
    def _filling(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """For vLLM it is the same model: it gets ids."""
        with filling_folder(self._folder) as path:
            yield replace(spec, path=path)

    async def _start(self, spec: ModelSpec) -> None:
        self._core = Core(str(self._folder), engine_arguments(spec.options))
        self._loaded = await self._core.start()

    def core_of(self, path: str, arguments: Mapping[str, Any]) -> KeptCore:
        return KeptCore(self.core, self.loaded)

    @property
    def core(self) -> Core:
        assert self._core is not None
        return self._core

    @property
    def loaded(self) -> VllmModel:
        assert self._loaded is not None
        return self._loaded

    async def close(self) -> None:
        if self._core is not None:
            await self._core.close()

    def idle(self, worker: EngineWorker) -> bool:
        """Neither we nor vLLM's front know of any request."""
        return not self._engine(worker).busy and not self.core._llm.output_processor.has_unfinished_requests()

    def steps(self, worker: EngineWorker) -> int:
        return self._engine(worker).steps_run

    @contextlib.contextmanager
    def fault(self, worker: EngineWorker, at_step: int, error: BaseException) -> Iterator[None]:
        """Each choice fails as it hears its token number `at_step`; where it reads late, an output has several."""
        heard: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
        hear = VllmGeneration._hear

        def fail(generation: Any, index: int, output: Any, *rest: Any) -> None:
            counts = heard.setdefault(generation, {})
            counts[index] = counts.get(index, 0) + len(output.outputs[0].token_ids)
            if counts[index] > at_step:
                raise error
            hear(generation, index, output, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VllmGeneration, "_hear", fail)
            yield

    def _engine(self, worker: EngineWorker) -> VllmEngine:
        engine = engine_of(worker)
        assert isinstance(engine, VllmEngine)
        return engine
