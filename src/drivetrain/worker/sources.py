"""Where each setting comes from: keyword or flag, environment, TOML file, default, in that order."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Boolean, Integer, ListOf, Number, Table
from drivetrain.core.settings import Setting
from drivetrain.worker.settings import Group, Settings, SettingsTable

_RESERVED = frozenset({"HOME", "CONFIG", "INDEX_URL"})
"""`DRIVETRAIN_X` variables that are not settings of a worker."""

Layer = dict[str, tuple[Any, str]]
"""Values by the names of their settings, each with its origin in words."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, and in words where each value came from."""

    settings: Settings
    origins: Mapping[str, str]
    declared: Mapping[str, Setting]

    def value(self, name: str) -> Any:
        """What was stated, or else the default."""
        value = self.settings.value(name)
        return self.declared[name].default if value is None else value

    def explain(self, without: Collection[str] = ()) -> str:
        """One line per setting: name, value, origin."""
        told = {name: (self.value(name), origin) for name, origin in self.origins.items() if name not in without}
        return explained(told, self.declared)


def explained(told: Layer, declared: Mapping[str, Setting]) -> str:
    """One line per setting: name, value, origin. A value that is decided later is told in words."""
    width = max(map(len, told))
    shown = {
        name: (declared[name].otherwise or "not set") if value is None else repr(value)
        for name, (value, _) in told.items()
    }
    return "\n".join(f"{name:<{width}}  {shown[name]}  ({origin})" for name, (_, origin) in told.items())


def read_settings(
    table: SettingsTable,
    model: str,
    given: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Resolved:
    """Raises `InvalidSetting` for an unknown name, an unreadable file or a value that the setting does not take.

    The file is `config`, else what `DRIVETRAIN_CONFIG` names. Its top level holds settings for every model and
    `[models.NAME]` those of one.
    """
    environment = os.environ if environment is None else environment
    path = config_file(config, environment)
    refuse_misspelt(environment, table.all)
    stated = {
        **(_from_file(table, model, path) if path is not None else {}),
        **from_environment(
            table.all, environment, lambda name: (environment_name(model, name), f"DRIVETRAIN_{name.upper()}")
        ),
        **_from_keywords(table, given),
    }
    origins = {name: stated[name][1] if name in stated else "default" for name in table.all}
    engine = table.groups[Group.ENGINE]
    settings = Settings(
        engine_options={name: value for name, (value, _) in stated.items() if name in engine},
        **{name: value for name, (value, _) in stated.items() if name not in engine},
    )
    if settings.timeout_s > settings.max_timeout_s:
        raise InvalidSetting("timeout_s is more than max_timeout_s; raise max_timeout_s too", param="timeout_s")
    return Resolved(settings, origins, table.all)


def config_file(given: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """The settings file: the one that was given, else the one that the environment names."""
    named = (os.environ if environment is None else environment).get("DRIVETRAIN_CONFIG")
    return given or (Path(named) if named else None)


def read_toml(path: Path) -> dict[str, Any]:
    """Raises `InvalidSetting`."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise InvalidSetting(f"the settings file {path} cannot be read: {exc.strerror}", param="config") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise InvalidSetting(f"the settings file {path} is not TOML: {exc}", param="config") from exc


def refuse_misspelt(environment: Mapping[str, str], settings: Collection[str], others: Collection[str] = ()) -> None:
    """Refuse a `DRIVETRAIN_X` that is almost a setting. Others may belong to other parts, or to other models.

    `others` are the names that are not settings of a model, so no model's name stands before them.
    """
    known = {*settings, *others}
    for variable in environment:
        name = variable.removeprefix("DRIVETRAIN_").lower()
        if not variable.startswith("DRIVETRAIN_") or name in known:
            continue
        if any(name.endswith(f"_{n}") for n in settings):
            continue
        if close := difflib.get_close_matches(name, known, 1, cutoff=0.85):
            raise InvalidSetting(
                f"{variable} is not a setting; did you mean DRIVETRAIN_{close[0].upper()}?", param=close[0]
            )


def environment_name(model: str, name: str) -> str:
    """`DRIVETRAIN_{MODEL}_X`: the model's name in capitals, with everything but letters and digits as `_`."""
    short = re.sub(r"[^A-Z0-9]+", "_", model.rstrip("/").rpartition("/")[2].upper()).strip("_")
    return f"DRIVETRAIN_{short}_{name.upper()}"


def _from_keywords(table: SettingsTable, given: Mapping[str, Any]) -> Layer:
    found = {name: (table.find(name), value) for name, value in given.items()}
    return {
        name: (judged(name, one, value, f"the setting {name}"), "flag or keyword")
        for name, (one, value) in found.items()
        if value is not None
    }


def from_environment(
    settings: Mapping[str, Setting], environment: Mapping[str, str], variables: Callable[[str], Sequence[str]]
) -> Layer:
    """`variables` gives those of a setting; the first that is set counts. Raises `InvalidSetting`."""
    layer: Layer = {}
    for name, one in settings.items():
        for variable in variables(name):
            if variable in environment and variable.removeprefix("DRIVETRAIN_") not in _RESERVED:
                layer[name] = (parse_setting(name, one, environment[variable], variable), f"environment {variable}")
                break
    return layer


def _from_file(table: SettingsTable, model: str, path: Path) -> Layer:
    data = read_toml(path)
    data.pop("serve", None)  # the server's settings, not a worker's
    models = data.pop("models", {})
    if not isinstance(models, dict):
        raise InvalidSetting(f"models in {path} must be a table", param="models")
    layer: Layer = {}
    tables = [("", data), *((f"models.{n}.", t) for n, t in models.items() if n in {model, Path(model).name})]
    for prefix, stated in tables:
        if not isinstance(stated, dict):
            raise InvalidSetting(f"{prefix.rstrip('.')} in {path} must be a table", param="models")
        layer |= from_table({name: table.find(name) for name in stated}, stated, path, prefix)
    return layer


def from_table(settings: Mapping[str, Setting], stated: Mapping[str, Any], path: Path, prefix: str) -> Layer:
    """What a table of the file states of these settings. Raises `InvalidSetting`."""
    return {
        name: (judged(name, one, stated[name], f"{prefix}{name} in {path}"), f"file {path}: {prefix}{name}")
        for name, one in settings.items()
        if name in stated
    }


def parse_setting(name: str, one: Setting, text: str, where: str) -> Any:
    """A value from text, as in an environment variable. Raises `InvalidSetting`, naming `where`."""
    return judged(name, one, _parsed(one, text), where)


def _parsed(one: Setting, text: str) -> Any:
    """Text that cannot be read stays as it is, and is refused in the words of the setting's kind."""
    try:
        match one.kind:
            case Boolean():
                return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
            case Integer():
                return int(text)
            case Number():
                return float(text)
            case ListOf():
                return tuple(part.strip() for part in text.split(",") if part.strip())
            case Table():
                return json.loads(text)
    except (ValueError, KeyError, RecursionError):
        pass
    return text


def judged(name: str, one: Setting, value: Any, where: str) -> Any:
    """As plain data: these values are shown, and cross to other processes."""
    judged = one.judge(name, value, where)
    return judged.value if isinstance(judged, Enum) else judged
