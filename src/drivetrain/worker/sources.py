"""Where each setting comes from: keyword or flag, environment, TOML file, default, in that order."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.request import Overflow
from drivetrain.worker.settings import Settings, default_of

_FIELDS = {field.name: field for field in fields(Settings)}
_TYPES = typing.get_type_hints(Settings)
_RESERVED = frozenset({"HOME", "CONFIG", "INDEX_URL"})
"""`DRIVETRAIN_X` variables that are not settings of a worker."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, and in words where each value came from."""

    settings: Settings
    origins: Mapping[str, str]

    def explain(self) -> str:
        """One line per setting: name, value, origin."""
        rows = [(name, repr(getattr(self.settings, name)), self.origins[name]) for name in _FIELDS]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}  ({origin})" for name, value, origin in rows)


def read_settings(
    model: str,
    given: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Resolved:
    """Raises `InvalidSetting` for an unknown name, an unreadable file or a value of the wrong type.

    The file is `config`, else what `DRIVETRAIN_CONFIG` names. Its top level holds settings for every model and
    `[models.NAME]` those of one.
    """
    environment = os.environ if environment is None else environment
    path = config or (Path(environment["DRIVETRAIN_CONFIG"]) if environment.get("DRIVETRAIN_CONFIG") else None)
    for name in given:
        known_setting(name)
    _refuse_misspelt(environment)
    layers = [
        _from_keywords(given),
        _from_environment(model, environment),
        _from_file(model, path) if path is not None else {},
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, field in _FIELDS.items():
        value, origin = next((layer[name] for layer in layers if name in layer), (default_of(field), "default"))
        values[name], origins[name] = value, origin
    if values["timeout_s"] > values["max_timeout_s"]:
        raise InvalidSetting("timeout_s is more than max_timeout_s; raise max_timeout_s too", param="timeout_s")
    return Resolved(Settings(**values), origins)


def _refuse_misspelt(environment: Mapping[str, str]) -> None:
    """Refuse a `DRIVETRAIN_X` that is almost a setting. Others may belong to other parts, or to other models."""
    for variable in environment:
        name = variable.removeprefix("DRIVETRAIN_").lower()
        if not variable.startswith("DRIVETRAIN_") or any(name == n or name.endswith(f"_{n}") for n in _FIELDS):
            continue
        if close := difflib.get_close_matches(name, _FIELDS, 1, cutoff=0.85):
            raise InvalidSetting(
                f"{variable} is not a setting; did you mean DRIVETRAIN_{close[0].upper()}?", param=close[0]
            )


def known_setting(name: str) -> None:
    if name not in _FIELDS:
        close = difflib.get_close_matches(name, _FIELDS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InvalidSetting(f"there is no setting {name}{hint}", param=name)


def environment_name(model: str, name: str) -> str:
    """`DRIVETRAIN_{MODEL}_X`: the model's name in capitals, with everything but letters and digits as `_`."""
    short = re.sub(r"[^A-Z0-9]+", "_", model.rstrip("/").rpartition("/")[2].upper()).strip("_")
    return f"DRIVETRAIN_{short}_{name.upper()}"


Layer = dict[str, tuple[Any, str]]


def _from_keywords(given: Mapping[str, Any]) -> Layer:
    return {
        name: (_typed(name, value, f"the setting {name}"), "flag or keyword")
        for name, value in given.items()
        if value is not None
    }


def _from_environment(model: str, environment: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for name in _FIELDS:
        for variable in (environment_name(model, name), f"DRIVETRAIN_{name.upper()}"):
            if variable in environment and variable.removeprefix("DRIVETRAIN_") not in _RESERVED:
                layer[name] = (parse_setting(name, environment[variable], variable), f"environment {variable}")
                break
    return layer


def _from_file(model: str, path: Path) -> Layer:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise InvalidSetting(f"the settings file {path} cannot be read: {exc.strerror}", param="config") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise InvalidSetting(f"the settings file {path} is not TOML: {exc}", param="config") from exc
    data.pop("serve", None)  # the server's settings, not a worker's
    models = data.pop("models", {})
    if not isinstance(models, dict):
        raise InvalidSetting(f"models in {path} must be a table", param="models")
    layer: Layer = {}
    tables = [("", data), *((f"models.{n}.", t) for n, t in models.items() if n in {model, Path(model).name})]
    for prefix, table in tables:
        if not isinstance(table, dict):
            raise InvalidSetting(f"{prefix.rstrip('.')} in {path} must be a table", param="models")
        for name, value in table.items():
            known_setting(name)
            layer[name] = (_typed(name, value, f"{prefix}{name} in {path}"), f"file {path}: {prefix}{name}")
    return layer


def _kinds(name: str) -> tuple[type, ...]:
    """The plain types that a setting may have."""
    hint = _TYPES[name]
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(m) or m for m in members if m is not type(None))


def _typed(name: str, value: Any, where: str) -> Any:
    """Check a value that already has a type. An integer is accepted as a number; nothing else is converted."""
    (kind,) = _kinds(name)
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidSetting(f"{where} is {value!r}; it must be {_WORDS[kind]}", param=name)
    return _in_range(name, value, where)


def parse_setting(name: str, text: str, where: str) -> Any:
    """A value from text, as in an environment variable. Raises `InvalidSetting`, naming `where`."""
    (kind,) = _kinds(name)
    try:
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind is Mapping:
            return _typed(name, json.loads(text), where)
        return _in_range(name, kind(text), where)
    except (ValueError, KeyError):
        raise InvalidSetting(f"{where} is {text!r}; it must be {_WORDS[kind]}", param=name) from None


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a list of strings",
    Mapping: "a table (as text: a JSON object)",
}

_AT_LEAST = {
    "context_length": 1, "max_running": 1, "max_waiting": 0, "max_stops": 0, "max_logprobs": 0, "max_images": 0,
    "timeout_s": 0.001, "stall_s": 0.001, "drain_s": 0, "max_tokens": 1,
    "reader_timeout_s": 0.001, "max_unread": 1, "stream_interval": 1, "temperature": 0, "top_p": 1e-9, "top_k": 0,
    "min_p": 0, "repetition_penalty": 1e-9, "max_timeout_s": 0.001,
    "connect_timeout_s": 0.001, "first_timeout_s": 0.001, "silence_timeout_s": 0.001,
}  # fmt: skip
_AT_MOST = {"temperature": 2, "top_p": 1, "min_p": 1, "repetition_penalty": 10}


def _in_range(name: str, value: Any, where: str) -> Any:
    if name == "overflow" and value not in tuple(Overflow):
        raise InvalidSetting(f"{where} is {value!r}; it must be one of {', '.join(Overflow)}", param=name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        lowest = 1 if name.startswith("max_") else 0
        low, high = _AT_LEAST.get(name, lowest), _AT_MOST.get(name, 1e15)
        if not low <= value <= high:
            raise InvalidSetting(f"{where} is {value}; it must be from {low:g} to {high:g}", param=name)
    return value
