"""The engines that there are, and which of them are tried for a model. The only place that names concrete ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.engine import Description, Engine, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import InvalidSetting, MissingExtra
from drivetrain.engines.checkpoint.kinds import IN_WORDS, ModelKind, stated_kind
from drivetrain.engines.first_fit import Candidate
from drivetrain.store.formats import read_config
from drivetrain.store.models import LocalModel
from drivetrain.worker.settings import Settings


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
        return EngineChoice((named(settings.engine),), "named by the setting")
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
        " if native refuses it when it is loaded, transformers runs it",
    )
    why_not = stated_reason(config)
    return choice.without_first(why_not, settings) if why_not else choice


def check_engine(settings: Settings) -> None:
    """What can be refused before anything is fetched: an engine that is not, and settings that it does not have."""
    if settings.engine != "auto":
        refuse_unused(settings, named(settings.engine))


def refuse_unused(settings: Settings, kind: EngineKind) -> None:
    for name in kind.lacks(settings):
        raise InvalidSetting(
            f"the engine {kind.name} has no setting {name}; leave it out, or set it only for other models",
            param=name,
        )


def named(name: str) -> EngineKind:
    if name not in ENGINES:
        known = ", ".join(["auto", *ENGINES])
        raise InvalidSetting(f"engine is {name!r}; it must be one of {known}", param="engine")
    return ENGINES[name]
