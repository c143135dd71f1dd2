"""Which engines are tried for a model, in which order, and in words why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.assembly.engines import ENGINES, named
from drivetrain.core.engine import WeightsFormat
from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.base.kind import EngineKind
from drivetrain.engines.checkpoint.kinds import IN_WORDS, ModelKind, stated_kind
from drivetrain.engines.first_fit import Candidate
from drivetrain.store.formats import read_config
from drivetrain.store.models import LocalModel
from drivetrain.worker.settings import Settings


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

    def candidates(self, settings: Settings) -> list[Candidate]:
        return [Candidate(kind.name, kind.make, kind.lacks(settings.engine_options)) for kind in self.kinds]

    def without_first(self, why_not: str, settings: Settings) -> EngineChoice:
        """What is left once the first one has said why it cannot run the model."""
        refused, following, *_ = self.candidates(settings)
        note = following.instead_of(refused.name, why_not)
        return EngineChoice(self.kinds[1:], note, (*self.notes, note))


def choose_engine(settings: Settings, model: LocalModel | None) -> EngineChoice:
    """The engines for a model. `auto` looks at the weights and the configuration; None are the weights of the fake."""
    if settings.engine != "auto":
        return EngineChoice((named(settings.engine),), "named by the setting")
    if model is None:
        return EngineChoice((ENGINES["fake"],), "the model name is fake")
    if model.format is WeightsFormat.GGUF:
        return _for_gguf(model.form)
    return _for_folder(read_config(model.path), settings)


def _for_gguf(form: str | None) -> EngineChoice:
    first, second, third = ENGINES["llamacpp"], ENGINES["native"], ENGINES["transformers"]
    if second.installed and not first.installed:
        why = "the weights are gguf, and llamacpp, which runs them as they are, is not installed"
        return EngineChoice((second, third), why)
    how = "as they are" if form is None else f"in {form}, as the catalogue recommends for them"
    return EngineChoice((first,), f"the weights are gguf, which llamacpp runs {how}")


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
    for name in kind.lacks(settings.engine_options):
        raise InvalidSetting(
            f"the engine {kind.name} has no setting {name}; leave it out, or set it only for other models",
            param=name,
        )
