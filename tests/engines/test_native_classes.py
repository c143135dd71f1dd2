"""The tables of classes that native refuses, against the installed library."""

from __future__ import annotations

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

from drivetrain.core.errors import UnfitEngine
from drivetrain.engines.checkpoint.kinds import StatedConfig
from drivetrain.engines.native.model.probe import check_class
from drivetrain.engines.native.model.supported import OWN_ATTENTION, TAKES_NO, known_reason


def why_not(name: str) -> str | None:
    """What loading the class would say."""
    try:
        check_class(getattr(transformers, name))
    except UnfitEngine as exc:
        return exc.why
    return None


def test_each_causal_class_is_refused_before_loading_as_it_would_be_when_loaded() -> None:
    assert len(CAUSAL) > 100
    by_class = {name: why_not(name) for name in set(CAUSAL.values())}
    told = {name: known_reason(StatedConfig({"architectures": [name]})) for name in by_class}
    assert told == by_class
    told = {name: known_reason(StatedConfig({"model_type": model_type})) for model_type, name in CAUSAL.items()}
    assert told == by_class


@pytest.mark.parametrize("table", [OWN_ATTENTION, TAKES_NO])
def test_the_library_has_every_model_type_of_the_tables(table: dict[str, object]) -> None:
    assert table.keys() <= CAUSAL.keys()
