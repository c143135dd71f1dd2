"""From the arguments of `drivetrain diff` to the engines to ask, each with a model and settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from drivetrain import assembly
from drivetrain.cli.flags import options
from drivetrain.cli.flags.engine_settings import ENGINE_SETTINGS, parse_setting, settings_for
from drivetrain.core.errors import InvalidSetting
from drivetrain.worker import sources
from drivetrain.worker.sources import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    label: str
    model: str
    resolved: Resolved


@dataclass(slots=True)
class _NamedEngine:
    """`native:quantize=int8`, or any other part of `--engines`."""

    engine: str
    texts: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return ":".join([self.engine, ",".join(self.texts)]) if self.texts else self.engine


def read_sides(args: argparse.Namespace) -> list[PlannedEngine]:
    """Two or more. Raises `InvalidSetting`."""
    items = _items(args.engines)
    if len(items) < 2:
        raise InvalidSetting("--engines must name two or more, such as native,transformers")
    models = _models(args.model_for, {item.engine for item in items})
    given = options.given_settings(args)
    _refuse_unused(given, items)
    sides: list[PlannedEngine] = []
    for item in items:
        model = models.get(item.engine, args.model)
        chosen = settings_for(item.engine, given) | item.settings
        resolved = sources.read_settings(assembly.SETTINGS, model, chosen | {"engine": item.engine}, config=args.config)
        assembly.check_engine(resolved.settings)
        assembly.is_remote(model, resolved.settings)
        label = _apart(item.label, [side.label for side in sides])
        sides.append(PlannedEngine(label=label, model=model, resolved=resolved))
    return sides


def _items(parts: Sequence[str]) -> list[_NamedEngine]:
    """`native:quantize=int8,compile=on,llamacpp`: a part with an = is a setting of the engine before it."""
    items: list[_NamedEngine] = []
    for part in parts:
        name, colon, rest = part.partition(":")
        if "=" not in name:
            if name not in assembly.ENGINES:
                known = ", ".join(assembly.ENGINES)
                raise InvalidSetting(f"--engines has {name!r}; it must be one of {known}", param="engine")
            items.append(_NamedEngine(name, []))
            if colon:
                _add_setting(items[-1], rest)
        elif not items:
            raise InvalidSetting(f"--engines begins with {part!r}; name an engine first, such as native:{part}")
        else:
            _add_setting(items[-1], part)
    return items


def _add_setting(item: _NamedEngine, text: str) -> None:
    name, value = parse_setting(text, f"--engines {item.engine}")
    if name == "engine" or name in item.settings:
        raise InvalidSetting(f"--engines names {name} twice for {item.engine}", param=name)
    item.texts.append(text)
    item.settings[name] = value


def _models(texts: Sequence[str], engines: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        engine, sign, model = text.partition("=")
        if not sign or not model:
            raise InvalidSetting(f"--model-for is {text!r}; it must be ENGINE=MODEL, such as llamacpp=model.gguf")
        if engine not in engines:
            raise InvalidSetting(f"--model-for is for {engine!r}, which --engines does not name")
        if engine in found:
            raise InvalidSetting(f"--model-for names a model for {engine} twice")
        found[engine] = model
    return found


def _refuse_unused(given: dict[str, Any], items: Sequence[_NamedEngine]) -> None:
    for name in given:
        if name in ENGINE_SETTINGS and not any(name in assembly.ENGINES[item.engine].settings for item in items):
            raise InvalidSetting(
                f"none of these engines has a setting {name}; leave {options.flag(name)} out", param=name
            )


def _apart(label: str, taken: Sequence[str]) -> str:
    """The second side with the same name is `NAME (2)`."""
    alike = sum(other == label or other.startswith(f"{label} (") for other in taken)
    return f"{label} ({alike + 1})" if alike else label
