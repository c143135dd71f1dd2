"""Settings as flags, made from the table in `worker/settings.py`, and the flags that commands on a model share."""

from __future__ import annotations

import argparse
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.parameters import PARAMETERS
from drivetrain.worker.settings import Group, Settings, default_of

if TYPE_CHECKING:
    from drivetrain.worker.sources import Resolved

Commands = Any
"""What `add_subparsers` returns; argparse does not name its type."""

_HINTS = typing.get_type_hints(Settings)
_DEST = "setting_"

NAMED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<reference>.+)", re.DOTALL)
"""`NAME=MODEL`."""


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a short name, a folder, a .gguf file, a Hugging Face id or a URL"
    )
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")


def add_remote(parser: argparse.ArgumentParser) -> None:
    """For commands that accept a URL as MODEL."""
    parser.add_argument(
        "--model", dest="at_url", metavar="NAME", help="the model's name at the server, if MODEL is a URL"
    )


def add_settings(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """A flag for each setting. `without` leaves out those that the command's request options shadow."""
    sources = parser.add_argument_group(
        "settings",
        "Settings come from flags, then DRIVETRAIN_{MODEL}_X, DRIVETRAIN_X, a TOML file, and the defaults.",
    )
    sources.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file (default: the one that DRIVETRAIN_CONFIG names)"
    )
    sources.add_argument(
        "--explain", action="store_true", help="print each setting with its value and origin, and exit"
    )
    groups = {group: parser.add_argument_group(f"settings: {group}") for group in Group if _named(group, without)}
    for group, target in groups.items():
        for name in _named(group, without):
            _add_flag(target, name)


def read_settings(args: argparse.Namespace) -> Resolved:
    """Also makes one reference in `args.model` of URLs and a model's name there. Raises `InvalidSetting`."""
    from drivetrain.worker import sources

    args.model = _reference(args.model, getattr(args, "more_urls", []), args.at_url)
    return sources.read_settings(args.model, given_settings(args), config=args.config)


def _reference(model: str, more_urls: Sequence[str], name: str | None) -> str:
    from drivetrain.engines.remote.address import is_url

    if name is None:
        return ",".join([model, *more_urls])
    if not is_url(model) or "#" in model:
        raise InvalidSetting("--model is only for a URL that does not name a model already", param="model")
    return f"{','.join([model, *more_urls])}#{name}"


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given as flags."""
    return prefixed(args, _DEST)


def prefixed(args: argparse.Namespace, prefix: str) -> dict[str, Any]:
    given = ((name, value) for name, value in vars(args).items() if name.startswith(prefix) and value is not None)
    return {name.removeprefix(prefix): value for name, value in given}


def explain(args: argparse.Namespace, resolved: Resolved) -> int:
    """What `--explain` prints."""
    if getattr(args, "json", False):
        output.document(explained(resolved))
    else:
        output.line(resolved.explain())
    return 0


def explained(resolved: Resolved) -> dict[str, Any]:
    return {
        name: {"value": plain(getattr(resolved.settings, name)), "origin": origin}
        for name, origin in resolved.origins.items()
    }


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def kind_of(hint: Any) -> Any:
    """The hint without its None."""
    if isinstance(hint, types.UnionType):
        return next(member for member in typing.get_args(hint) if member is not type(None))
    return hint


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def check_range(args: argparse.Namespace, name: str, low: float, high: float, unit: str = "") -> None:
    """Raises `InvalidSetting` for a number outside the range, and for NaN. A flag that was not given passes."""
    value = getattr(args, name)
    if value is not None and not low <= value <= high:
        raise InvalidSetting(
            f"{flag(name)} is {value:.15g}; it must be from {low:.15g} to {high:.15g}{unit}", param=name
        )


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (whole_number, "N"),
    float: (number, "X"),
    str: (str, "NAME"),
    tuple: (comma_list, "A,B"),
    Mapping: (json_object, "JSON"),
}


def shadowed() -> frozenset[str]:
    """Settings that are request parameters too: their flags belong to the request."""
    return frozenset(_HINTS) & frozenset(PARAMETERS)


def _named(group: Group, without: Collection[str]) -> list[str]:
    return [f.name for f in fields(Settings) if f.metadata["group"] is group and f.name not in without]


def _add_flag(target: Any, name: str) -> None:
    field = next(f for f in fields(Settings) if f.name == name)
    default = default_of(field)
    shown = "" if default is None or default == () else f" (default: {default})"
    options = {"dest": _DEST + name, "default": None, "help": (field.metadata["meaning"] + shown).replace("%", "%%")}
    kind = kind_of(_HINTS[name])
    if kind is bool:
        target.add_argument(flag(name), action=argparse.BooleanOptionalAction, **options)
    else:
        read, metavar = _READERS[typing.get_origin(kind) or kind]
        target.add_argument(flag(name), type=read, metavar=metavar, **options)
