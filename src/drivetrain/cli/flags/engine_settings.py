"""Settings for one engine among several, as `diff --engines` and `bench --against` take them: `quantize=int8`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain import assembly
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker import sources
from drivetrain.worker.settings import Group

ENGINE_SETTINGS = frozenset(assembly.SETTINGS.groups[Group.ENGINE])
"""The settings that only some engines have."""


def parse_setting(text: str, flag: str) -> tuple[str, Any]:
    """The name and the value in `name=value`. Raises `InvalidSetting`, which names the flag."""
    name, sign, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if not sign or not value:
        raise InvalidSetting(f"{flag} has {text!r}; it must be a setting such as quantize=int8")
    return name, sources.parse_setting(name, assembly.SETTINGS.find(name), value, f"{flag} {name}")


def settings_for(engine: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, without the settings that only other engines have."""
    others = ENGINE_SETTINGS - assembly.ENGINES[engine].settings.keys()
    return {name: value for name, value in given.items() if name not in others}
