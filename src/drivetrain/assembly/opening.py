"""From a model's name and settings to a worker that can start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.assembly.choosing import EngineChoice, check_engine, choose_engine, refuse_unused
from drivetrain.assembly.engines import ENGINES, SETTINGS, named
from drivetrain.core.engine import Engine, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import Cancelled, InvalidSetting
from drivetrain.core.stats import Stats
from drivetrain.engines.first_fit import FirstFit
from drivetrain.engines.remote.address import Key, Reference, is_url
from drivetrain.store.catalogue import CATALOGUE, short_name
from drivetrain.store.models import LocalModel
from drivetrain.store.references import parse
from drivetrain.store.store import Store
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.worker import worker as worker_module
from drivetrain.worker.receipts import receipt_key
from drivetrain.worker.settings import Settings
from drivetrain.worker.sources import read_settings


def is_remote(model: str, settings: Settings) -> bool:
    """Whether the model is a URL. Raises `InvalidSetting` where model and settings contradict each other."""
    remote = is_url(model)
    if remote and settings.engine not in {"auto", "remote"}:
        raise InvalidSetting(f"a URL is for the engine remote, not for {settings.engine}", param="engine")
    if remote and settings.family is not None:
        raise InvalidSetting("a URL's upstream has its own prompt form; leave family out", param="family")
    if not remote and settings.engine == "remote":
        raise InvalidSetting("the engine remote needs a URL, such as http://127.0.0.1:8000/v1", param="engine")
    return remote


def name_of(model: str) -> str | None:
    """What a model is called where nobody says otherwise, without asking anybody; None: only its server knows.

    Raises `ModelNotFound` for what is no model's name, and `InvalidSetting` for an address that is none.
    """
    if is_url(model):
        from drivetrain.engines.remote.probe import public_name

        name = Reference.parse(model).model
        return None if name is None else public_name(name)
    return model if model == "fake" else parse(model).name


def remote_spec(model: str, settings: Settings) -> ModelSpec:
    """One URL, or several with commas, and `#NAME` behind them where the upstream has more than one model."""
    from drivetrain.engines.remote.engine import UPSTREAM
    from drivetrain.engines.remote.probe import only_model, public_name
    from drivetrain.engines.remote.wire import Timeouts

    reference = Reference.parse(model)
    name = reference.model or only_model(reference, Key.of_environment(), Timeouts.of(settings.engine_options))
    urls = ",".join(map(str, reference.addresses))
    return ModelSpec(
        name=settings.name or public_name(name),
        path=Path(),
        format=WeightsFormat.NONE,
        options={**settings.engine_options, UPSTREAM: f"{urls}#{name}"},
    )


def is_fake(model: str, settings: Settings) -> bool:
    return model == "fake" and settings.engine in {"auto", "fake"}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a worker is made of. `make` gives an engine that is not loaded yet, as often as one is needed."""

    make: Callable[[], Engine]
    spec: ModelSpec
    settings: Settings

    def worker(
        self,
        *,
        tracer: GenAiTracer | None = None,
        progress: Progress | None = None,
        stats: Stats | None = None,
        warm: bool = False,
    ) -> Worker:
        """`stats` are counts to go on with: those of an earlier worker of the same model."""
        return Worker(
            self.make(),
            self.spec,
            self.settings,
            remake=self.make,
            tracer=tracer,
            progress=progress,
            stats=stats,
            warm=warm,
        )

    def opening(self, progress: Progress | None = None) -> Opening:
        return Opening(lambda report: self.worker(progress=report), progress)


def open_parts(
    model: str, settings: Settings, *, store: Store | None = None, progress: Progress | None = None
) -> Parts:
    """The parts of a worker for a model, which is fetched if it was not here.

    What will be refused is refused before anything is fetched.
    """
    check_engine(settings)
    receipt_key(settings.receipt_key_file)
    if is_remote(model, settings):
        refuse_unused(settings, ENGINES["remote"])
        return Parts(ENGINES["remote"].make, remote_spec(model, settings), settings)
    store = store or Store()
    if is_fake(model, settings):
        refuse_unused(settings, ENGINES["fake"])
        return Parts(ENGINES["fake"].make, spec_of(None, settings, store), settings)
    _refuse_if_none(model, settings)
    found = store.pull(model, progress or (lambda what, share: None))
    choice = choose_engine(settings, found)
    choice.kind.refuse_if_missing()
    refuse_unused(settings, choice.kind)
    return Parts(_maker(choice, settings), spec_of(found, settings, store), settings)


def _maker(choice: EngineChoice, settings: Settings) -> Callable[[], Engine]:
    if len(choice.kinds) == 1 and not choice.notes:
        return choice.kind.make
    candidates = choice.candidates(settings)
    return lambda: FirstFit(candidates, choice.notes)


def _refuse_if_none(model: str, settings: Settings) -> None:
    """Before anything is fetched: the engine that was named, or any that has weights, must be installed."""
    if settings.engine != "auto":
        named(settings.engine).refuse_if_missing()
    elif not any(kind.installed for kind in ENGINES.values() if kind.needs):
        known = CATALOGUE.get(short_name(model, CATALOGUE) or "")
        is_gguf = known.is_gguf if known is not None else model.endswith(".gguf")
        ENGINES["llamacpp" if is_gguf else "native"].refuse_if_missing()


def spec_of(found: LocalModel | None, settings: Settings, store: Store) -> ModelSpec:
    if found is None:
        return ModelSpec(name=settings.name or "fake", path=Path(), format=WeightsFormat.NONE)
    return ModelSpec(
        name=settings.name or found.name,
        path=found.path,
        format=found.format,
        options=settings.engine_options,
        derived=_Derived(store, found),
        catalogue_sampling=found.sampling,
        weights=found.weights,
        form=found.form,
    )


def prepare(found: LocalModel, store: Store, progress: Progress) -> None:
    """Make now what the engine for these weights would make of them when it first loads them, if the catalogue asks."""
    if found.form is None:
        return
    settings = Settings()
    kind = choose_engine(settings, found).kind
    prepare_weights = kind.enter().prepare if kind.installed else None
    if prepare_weights is not None:
        prepare_weights(spec_of(found, settings, store), progress)


class _Derived:
    """What engines made of one model of the store."""

    def __init__(self, store: Store, model: LocalModel) -> None:
        self._store = store
        self._model = model

    def find(self, kind: str) -> Path | None:
        return self._store.derived(self._model, kind)

    def make(self, kind: str, build: Callable[[Path], None], progress: Progress) -> Path:
        return self._store.derive(self._model, kind, build, progress)


class Opening:
    """A worker about to be opened: `async with` it, or `await` it and call `stop` yourself.

    `make` may fetch weights, so it runs beside the event loop, with a progress callback. Cancelling the opening
    makes that callback raise, which ends a download.
    """

    def __init__(self, make: Callable[[Progress], Worker], progress: Progress | None = None) -> None:
        self._make = make
        self._progress: Progress = progress or (lambda what, share: None)
        self._cancelled = threading.Event()
        self._worker: Worker | None = None

    async def _open(self) -> Worker:
        try:
            worker = await asyncio.to_thread(self._make, self._report)
            await worker.start()
        except asyncio.CancelledError:
            self._cancelled.set()
            raise
        self._worker = worker
        return worker

    def _report(self, what: str, share: float | None) -> None:
        if self._cancelled.is_set():
            raise Cancelled("opening the model was cancelled")
        self._progress(what, share)

    def __await__(self) -> Generator[Any, None, Worker]:
        return self._open().__await__()

    async def __aenter__(self) -> Worker:
        return await self._open()

    async def __aexit__(self, *exc: object) -> None:
        if self._worker is not None:
            await self._worker.stop()


class Worker(worker_module.EngineWorker):
    """The worker with a front door: `open` finds the weights, picks the engine and reads the settings."""

    @classmethod
    def open(
        cls,
        model: str | Path,
        engine: str = "auto",
        *,
        progress: Progress | None = None,
        tracer: GenAiTracer | None = None,
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
        resolved = read_settings(SETTINGS, name, given).settings
        return cls.with_settings(name, resolved, progress=progress, tracer=tracer, store=store)

    @classmethod
    def with_settings(
        cls,
        model: str,
        settings: Settings,
        *,
        progress: Progress | None = None,
        tracer: GenAiTracer | None = None,
        store: Store | None = None,
        stats: Stats | None = None,
        warm: bool = False,
    ) -> Opening:
        """The same with settings that were read already, and counts to go on with."""

        def make(report: Progress) -> Worker:
            parts = open_parts(model, settings, store=store, progress=report)
            return parts.worker(tracer=tracer, progress=progress, stats=stats, warm=warm)

        return Opening(make, progress)
