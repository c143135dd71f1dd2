from __future__ import annotations

from typing import Any

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.native.settings import Compile, NativeSettings


@pytest.mark.parametrize(
    ("stated", "meant"),
    [("auto", "auto"), ("on", "on"), ("off", "off"), (True, "on"), (False, "off"), ("true", "on"), ("False", "off")],
)
def test_true_and_false_still_mean_on_and_off(stated: Any, meant: str) -> None:
    assert NativeSettings.of({"compile": stated}).compile == meant


def test_it_is_auto_by_itself() -> None:
    assert NativeSettings.of({}).compile is Compile.AUTO


@pytest.mark.parametrize("stated", ["yes", 1, ["on"]])
def test_anything_else_is_refused_with_what_it_takes(stated: Any) -> None:
    with pytest.raises(InvalidSetting, match="one of auto, on, off"):
        NativeSettings.of({"compile": stated})
