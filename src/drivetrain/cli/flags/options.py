"""Settings as flags, made from the table of `assembly`, and the flags that commands on a model share."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.assembly import SETTINGS
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.values import plain
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.kinds import Boolean, Integer, Kind, ListOf, Matching, Number, OneOf, String, Table, shown
from drivetrain.core.parameters import PARAMETERS
from drivetrain.core.settings import Setting

if TYPE_CHECKING:
    from drivetrain.worker.sources import Resolved

Commands = Any
"""What `add_subparsers` returns; argparse does not name its type."""

_DEST = "setting_"

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a short name, a folder, a .gguf file, a Hugging Face id or a URL"
    )
    add_quiet(parser)


def named_model(text: str) -> tuple[str | None, str]:
    """`NAME=MODEL` taken apart. Without a name, and if the whole text is a path that exists, the name is None."""
    named = _NAMED.fullmatch(text)
    return (None, text) if named is None or os.path.exists(text) else (named[1], named[2])


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
    for group, settings in SETTINGS.groups.items():
        target = parser.add_argument_group(f"settings: {group}")
        for name, one in settings.items():
            if name not in without:
                add_setting(target, name, one, dest=_DEST + name)


def add_setting(target: Any, name: str, one: Setting, *, dest: str, metavar: str | None = None) -> None:
    def reader(kind: Kind) -> Reader:
        read, usual = _READERS[type(kind)]
        return read, metavar or usual

    add_flag(target, name, one.kind, reader, dest=dest, meaning=_help(one))


def _help(one: Setting) -> str:
    form = f": {one.kind.takes}" if isinstance(one.kind, Matching) else ""
    default = f" (default: {one.default_text})" if one.default_text else ""
    return one.meaning + form + default


def read_settings(args: argparse.Namespace) -> Resolved:
    """Also makes one reference in `args.model` of URLs and a model's name there. Raises `InvalidSetting`."""
    from drivetrain.worker import sources

    args.model = _reference(args.model, getattr(args, "more_urls", []), args.at_url)
    return sources.read_settings(SETTINGS, args.model, given_settings(args), config=args.config)


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
    return {name: {"value": plain(resolved.value(name)), "origin": origin} for name, origin in resolved.origins.items()}


def changed(resolved: Resolved) -> dict[str, Any]:
    """The settings that are not at their default, whatever their origin."""
    origins = resolved.origins.items()
    return {name: resolved.settings.value(name) for name, origin in origins if origin != "default"}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
            f"{flag(name)} is {shown(value)}; it must be from {low:.15g} to {high:.15g}{unit}", param=name
        )


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not JSON") from None


def json_object(text: str) -> dict[str, Any]:
    value = json_value(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a JSON object")
    return value


Reader = tuple[Callable[[str], Any], str]
"""How a value is typed, and what help calls it."""

_READERS: Mapping[type[Kind], Reader] = {
    Integer: (whole_number, "N"),
    Number: (number, "X"),
    String: (str, "NAME"),
    Matching: (str, "NAME"),
    ListOf: (comma_list, "A,B"),
    Table: (json_object, "JSON"),
}


def add_flag(
    target: Any, name: str, kind: Kind, reader_of: Callable[[Kind], Reader], *, dest: str, meaning: str
) -> None:
    options = {"dest": dest, "default": None, "help": meaning.replace("%", "%%")}
    if isinstance(kind, Boolean):
        target.add_argument(flag(name), action=argparse.BooleanOptionalAction, **options)
    elif isinstance(kind, OneOf):
        target.add_argument(flag(name), choices=[*map(str, kind.choices)], **options)
    else:
        read, metavar = reader_of(kind)
        target.add_argument(flag(name), type=read, metavar=metavar, **options)


def as_argument(name: str, value: Any) -> str:
    """A setting as its flag is written, for a command line of another process."""
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    if isinstance(value, Mapping):
        value = json.dumps(value)
    return f"{flag(name)}={','.join(value) if isinstance(value, tuple) else value}"


def shadowed() -> frozenset[str]:
    """Settings that are request parameters too: their flags belong to the request."""
    return frozenset(SETTINGS.all) & frozenset(PARAMETERS)
