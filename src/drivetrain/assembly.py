"""The only place that names concrete classes: from a model's name and settings to a worker that can start."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Description, Engine, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import Cancelled, InvalidSetting, MissingExtra
from drivetrain.core.stats import Stats
from drivetrain.engines.checkpoint.kinds import IN_WORDS, ModelKind, stated_kind
from drivetrain.engines.first_fit import Candidate, FirstFit
from drivetrain.engines.remote.address import Key, Reference, is_url
from drivetrain.store.catalogue import CATALOGUE
from drivetrain.store.formats import read_config
from drivetrain.store.models import LocalModel
from drivetrain.store.references import parse
from drivetrain.store.store import Store
from drivetrain.telemetry.tracing import Tracer
from drivetrain.worker import worker as worker_module
from drivetrain.worker.settings import Settings
from drivetrain.worker.sources import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One engine that there is. `settings` are those it honours, `needs` the modules of its extra."""

    name: str
    settings: frozenset[str]
    needs: tuple[str, ...]
    make: Callable[[], Engine]
    describe: Callable[[ModelSpec, Progress], Description] | None = None
    """From the files alone. None: loading costs nothing and tells all."""
    describes_alone: bool = False
    """Whether `describe` needs none of the modules."""
    stated_capabilities: Callable[[Mapping[str, Any], int, Mapping[str, Any]], Capabilities] | None = None
    """From the JSON of a folder's configuration, the context length and the settings: without the modules."""

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in self.needs)

    @property
    def install(self) -> str:
        return f"pip install 'drivetrain[{self.name}]'"

    def refuse_if_missing(self) -> None:
        if not self.installed:
            raise MissingExtra(f"the engine {self.name}", extra=self.name)

    def lacks(self, settings: Settings) -> tuple[str, ...]:
        """The engine settings that were given and that it does not have."""
        return tuple(name for name in settings.engine_options if name not in self.settings)

    def candidate(self, settings: Settings) -> Candidate:
        return Candidate(self.name, self.make, self.lacks(settings))


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engines to try, in this order, and in words why. A later one is for a model that those before refuse.

    `notes` say of an engine that was passed over already why it was.
    """

    kinds: tuple[EngineKind, ...]
    why: str
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> EngineKind:
        return self.kinds[0]

    @classmethod
    def remote(cls) -> EngineChoice:
        return cls((ENGINES["remote"],), "the model is a URL")

    def without_first(self, why_not: str, settings: Settings) -> EngineChoice:
        """What is left once the first one has said why it cannot run the model."""
        refused, *rest = self.kinds
        note = rest[0].candidate(settings).instead_of(refused.name, why_not)
        return EngineChoice(tuple(rest), note, (*self.notes, note))


def _llamacpp() -> Engine:
    from drivetrain.engines.llamacpp.engine import LlamaCppEngine

    return LlamaCppEngine()


def _describe_llamacpp(spec: ModelSpec, progress: Progress) -> Description:
    from drivetrain.engines.llamacpp.describe import of_file

    return of_file(spec, progress)


def _native() -> Engine:
    from drivetrain.engines.native.engine import NativeEngine

    return NativeEngine()


def _describe_native(spec: ModelSpec, progress: Progress) -> Description:
    from drivetrain.engines.native.describe import of_files

    return of_files(spec, progress)


def _stated_native(config: Mapping[str, Any], context_length: int, options: Mapping[str, Any]) -> Capabilities:
    from drivetrain.engines.native.capabilities import stated_capabilities

    return stated_capabilities(config, context_length, options)


def _transformers() -> Engine:
    from drivetrain.engines.transformers.engine import TransformersEngine

    return TransformersEngine()


def _describe_transformers(spec: ModelSpec, progress: Progress) -> Description:
    from drivetrain.engines.transformers.describe import of_files

    return of_files(spec, progress)


def _stated_transformers(config: Mapping[str, Any], context_length: int, options: Mapping[str, Any]) -> Capabilities:
    from drivetrain.engines.transformers.describe import stated_capabilities

    return stated_capabilities(config, context_length, options)


def _remote() -> Engine:
    from drivetrain.engines.remote.engine import RemoteEngine

    return RemoteEngine()


def _describe_remote(spec: ModelSpec, progress: Progress) -> Description:
    from drivetrain.engines.remote.describe import of_upstream

    return of_upstream(spec, progress)


def _vllm() -> Engine:
    from drivetrain.engines.vllm.engine import VllmEngine

    return VllmEngine()


def _describe_vllm(spec: ModelSpec, progress: Progress) -> Description:
    from drivetrain.engines.vllm.describe import of_files

    return of_files(spec, progress)


def _stated_vllm(config: Mapping[str, Any], context_length: int, options: Mapping[str, Any]) -> Capabilities:
    from drivetrain.engines.vllm.capabilities import stated_capabilities

    return stated_capabilities(config, context_length, options)


def _fake() -> Engine:
    from drivetrain.engines.fake import FakeEngine

    return FakeEngine()


ENGINES = {
    kind.name: kind
    for kind in (
        EngineKind(
            name="llamacpp",
            settings=frozenset({"context_length", "slots", "threads", "gpu_layers", "mmproj", "pooling"}),
            needs=("xllamacpp",),
            make=_llamacpp,
            describe=_describe_llamacpp,
            describes_alone=True,
        ),
        EngineKind(
            name="native",
            settings=frozenset(
                {
                    "device",
                    "dtype",
                    "quantize",
                    "compile",
                    "trust_remote_code",
                    "context_length",
                    "pooling",
                    "kv_cache_gb",
                    "max_batch",
                    "prefix_cache",
                }
            ),
            needs=("torch", "transformers"),
            make=_native,
            describe=_describe_native,
            stated_capabilities=_stated_native,
        ),
        EngineKind(
            name="transformers",
            settings=frozenset({"device", "dtype", "trust_remote_code", "context_length", "pooling"}),
            needs=("torch", "transformers"),
            make=_transformers,
            describe=_describe_transformers,
            stated_capabilities=_stated_transformers,
        ),
        EngineKind(
            name="vllm",
            settings=frozenset(
                {
                    "dtype",
                    "trust_remote_code",
                    "context_length",
                    "kv_cache_gb",
                    "max_batch",
                    "prefix_cache",
                    "vllm_args",
                }
            ),
            needs=("vllm",),
            make=_vllm,
            describe=_describe_vllm,
            stated_capabilities=_stated_vllm,
        ),
        EngineKind(
            name="remote",
            settings=frozenset({"context_length", "connect_timeout_s", "first_timeout_s", "silence_timeout_s"}),
            needs=(),
            make=_remote,
            describe=_describe_remote,
            describes_alone=True,
        ),
        EngineKind(name="fake", settings=frozenset(), needs=(), make=_fake),
    )
}


def choose_engine(settings: Settings, model: LocalModel | None) -> EngineChoice:
    """The engines for a model. `auto` looks at the weights and the configuration; None are the weights of the fake."""
    if settings.engine != "auto":
        return EngineChoice((_named(settings.engine),), "named by the setting")
    if model is None:
        return EngineChoice((ENGINES["fake"],), "the model name is fake")
    if model.format is WeightsFormat.GGUF:
        return _for_gguf()
    return _for_folder(read_config(model.path), settings)


def _for_gguf() -> EngineChoice:
    first, second, third = ENGINES["llamacpp"], ENGINES["native"], ENGINES["transformers"]
    if second.installed and not first.installed:
        why = "the weights are gguf, and llamacpp, which runs them as they are, is not installed"
        return EngineChoice((second, third), why)
    return EngineChoice((first,), "the weights are gguf, which llamacpp runs as they are")


def _for_folder(config: Mapping[str, Any], settings: Settings) -> EngineChoice:
    """`native` for causal models. What it is known not to run goes to transformers at once; the rest is tried."""
    from drivetrain.engines.native.model.supported import stated_reason

    first, second = ENGINES["native"], ENGINES["transformers"]
    kind = stated_kind(config)
    if kind is not ModelKind.CAUSAL:
        return EngineChoice((second,), f"{IN_WORDS[kind]}, which transformers runs")
    choice = EngineChoice(
        (first, second),
        "it is a causal language model, which native runs many requests at a time;"
        " should native refuse it when it is loaded, transformers runs it",
    )
    why_not = stated_reason(config)
    return choice.without_first(why_not, settings) if why_not else choice


def check_engine(settings: Settings) -> None:
    """What can be refused before anything is fetched: an engine that is not, and settings that it does not have."""
    if settings.engine != "auto":
        refuse_unused(settings, _named(settings.engine))


def refuse_unused(settings: Settings, kind: EngineKind) -> None:
    for name in kind.lacks(settings):
        raise InvalidSetting(
            f"the engine {kind.name} has no setting {name}; leave it out, or state it for other models alone",
            param=name,
        )


def is_remote(model: str, settings: Settings) -> bool:
    """Whether the model is a URL. Raises `InvalidSetting` where model and settings contradict each other."""
    remote = is_url(model)
    if remote and settings.engine not in {"auto", "remote"}:
        raise InvalidSetting(f"a URL is for the engine remote, not for {settings.engine}", param="engine")
    if remote and settings.family is not None:
        raise InvalidSetting("the upstream of a URL has a prompt form of its own; leave family out", param="family")
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
        self, *, tracer: Tracer | None = None, progress: Progress | None = None, stats: Stats | None = None
    ) -> Worker:
        """`stats` are counts to go on with: those of an earlier worker of the same model."""
        made = self.make()
        return Worker(made, self.spec, self.settings, remake=self.make, tracer=tracer, progress=progress, stats=stats)


def open_parts(
    model: str, settings: Settings, *, store: Store | None = None, progress: Progress | None = None
) -> Parts:
    """The parts of a worker for a model, which is fetched if it was not here.

    What will be refused is refused before anything is fetched.
    """
    check_engine(settings)
    if is_remote(model, settings):
        refuse_unused(settings, ENGINES["remote"])
        return Parts(ENGINES["remote"].make, remote_spec(model, settings), settings)
    store = store or Store()
    if is_fake(model, settings):
        refuse_unused(settings, ENGINES["fake"])
        return Parts(ENGINES["fake"].make, spec_of(None, settings, store), settings)
    _refuse_if_none(model, settings)
    found = store.ensure(model, progress or (lambda what, share: None))
    choice = choose_engine(settings, found)
    choice.kind.refuse_if_missing()
    refuse_unused(settings, choice.kind)
    return Parts(_maker(choice, settings), spec_of(found, settings, store), settings)


def _maker(choice: EngineChoice, settings: Settings) -> Callable[[], Engine]:
    if len(choice.kinds) == 1 and not choice.notes:
        return choice.kind.make
    candidates = [kind.candidate(settings) for kind in choice.kinds]
    return lambda: FirstFit(candidates, choice.notes)


def _refuse_if_none(model: str, settings: Settings) -> None:
    """Before anything is fetched: the engine that was named, or any that has weights, must be installed."""
    if settings.engine != "auto":
        _named(settings.engine).refuse_if_missing()
    elif not any(kind.installed for kind in ENGINES.values() if kind.needs):
        ENGINES["llamacpp" if model in CATALOGUE or model.endswith(".gguf") else "native"].refuse_if_missing()


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
    )


def _named(name: str) -> EngineKind:
    if name not in ENGINES:
        known = ", ".join(["auto", *ENGINES])
        raise InvalidSetting(f"engine is {name!r}; it must be one of {known}", param="engine")
    return ENGINES[name]


class _Derived:
    """What engines made of one model of the store."""

    def __init__(self, store: Store, model: LocalModel) -> None:
        self._store = store
        self._model = model

    def find(self, kind: str) -> Path | None:
        if self._model.digest is None:
            return None
        folder = self._store.derived_path(self._model, kind)
        return folder if folder.is_dir() else None

    def make(self, kind: str, build: Callable[[Path], None]) -> Path:
        return self._store.derive(self._model, kind, build)


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
        stats: Stats | None = None,
    ) -> Opening:
        """The same with settings that were read already, and counts to go on with."""

        def make(report: Progress) -> Worker:
            parts = open_parts(model, settings, store=store, progress=report)
            return parts.worker(tracer=tracer, progress=progress, stats=stats)

        return Opening(make, progress)
