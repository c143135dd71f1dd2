"""The only place that names concrete classes: from a model's name and settings to a worker that can start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.engine import Engine, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import InvalidSetting
from drivetrain.store.models import LocalModel
from drivetrain.store.store import Store
from drivetrain.telemetry.tracing import Tracer
from drivetrain.worker import worker as worker_module
from drivetrain.worker.settings import Settings
from drivetrain.worker.sources import read_settings


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine, and in words why. `settings` are the engine settings that it honours."""

    name: str
    why: str
    settings: frozenset[str]
    make: Callable[[], Engine]


def _transformers() -> Engine:
    from drivetrain.engines.transformers.engine import TransformersEngine

    return TransformersEngine()


def _fake() -> Engine:
    from drivetrain.engines.fake import FakeEngine

    return FakeEngine()


_ENGINES: dict[str, tuple[frozenset[str], Callable[[], Engine]]] = {
    "transformers": (
        frozenset({"device", "dtype", "trust_remote_code", "context_length", "pooling"}),
        _transformers,
    ),
    "fake": (frozenset(), _fake),
}


def choose_engine(name: str, model: LocalModel | None) -> EngineChoice:
    """The engine for a model. `auto` looks at the weights."""
    if name == "auto":
        if model is None:
            return _engine("fake", "the model name is fake")
        return _engine("transformers", f"the weights are {model.format.value}, which transformers loads")
    return _engine(name, "named by the setting")


def _engine(name: str, why: str) -> EngineChoice:
    if name not in _ENGINES:
        known = ", ".join(["auto", *_ENGINES])
        raise InvalidSetting(f"engine is {name!r}; it must be one of {known}", param="engine")
    settings, make = _ENGINES[name]
    return EngineChoice(name, why, settings, make)


def resolve(model: str, engine: str, store: Store, progress: Progress) -> LocalModel | None:
    """The weights on this machine, pulled first if that can be. None for the fake, which has none."""
    if model == "fake" and engine in {"auto", "fake"}:
        return None
    return store.ensure(model, progress)


def open_parts(
    model: str, settings: Settings, *, store: Store | None = None, progress: Progress | None = None
) -> tuple[Engine, ModelSpec]:
    """An engine that is not loaded yet, and what it should load."""
    store = store or Store()
    report: Progress = progress or (lambda what, share: None)
    found = resolve(model, settings.engine, store, report)
    choice = choose_engine(settings.engine, found)
    refuse_unused(settings, choice)
    return choice.make(), _spec(found, settings, store)


def refuse_unused(settings: Settings, choice: EngineChoice) -> None:
    for name in settings.engine_options:
        if name not in choice.settings:
            raise InvalidSetting(f"the engine {choice.name} has no setting {name}; leave it out", param=name)


def _spec(found: LocalModel | None, settings: Settings, store: Store) -> ModelSpec:
    if found is None:
        return ModelSpec(name=settings.name or "fake", path=Path(), format=WeightsFormat.NONE)
    return ModelSpec(
        name=settings.name or found.name,
        path=found.path,
        format=found.format,
        options=settings.engine_options,
        derive=lambda kind, build: store.derive(found, kind, build),
    )


class Opening:
    """A worker about to be opened: `async with` it, or `await` it and call `stop` yourself."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker: Worker | None = None

    async def _open(self) -> Worker:
        worker = await asyncio.to_thread(self._make)
        await worker.start()
        self._worker = worker
        return worker

    def __await__(self) -> Generator[Any, None, Worker]:
        return self._open().__await__()

    async def __aenter__(self) -> Worker:
        return await self._open()

    async def __aexit__(self, *exc: object) -> None:
        if self._worker is not None:
            await self._worker.stop()


class Worker(worker_module.Worker):
    """The worker with a front door: `open` finds the weights, picks the engine and reads the settings."""

    @classmethod
    def open(
        cls,
        model: str | Path,
        engine: str = "auto",
        *,
        progress: Progress | None = None,
        tracer: Tracer | None = None,
        store: Store | None = None,
        **settings: Any,
    ) -> Opening:
        """A worker for `model`: a short name, a folder, a file or a Hugging Face id. Pulls what is not here.

        Settings come from the keywords, then `DRIVETRAIN_{MODEL}_X`, `DRIVETRAIN_X`, and a TOML file.

            async with drivetrain.Worker.open("smollm2-135m", temperature=0) as worker:
                print((await worker.generate(prompt="The capital of France is", max_tokens=8)).text)
        """
        name = str(model)
        given = settings if engine == "auto" else {"engine": engine, **settings}
        resolved = read_settings(name, given).settings
        return cls.with_settings(name, resolved, progress=progress, tracer=tracer, store=store)

    @classmethod
    def with_settings(
        cls,
        model: str,
        settings: Settings,
        *,
        progress: Progress | None = None,
        tracer: Tracer | None = None,
        store: Store | None = None,
    ) -> Opening:
        """The same with settings that were read already."""

        def make() -> Worker:
            engine, spec = open_parts(model, settings, store=store, progress=progress)
            return cls(engine, spec, settings, tracer=tracer, progress=progress)

        return Opening(make)
