"""`serve` with several models: what the flags and the file's `[serve]` table say about them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.server_options import OF_SEVERAL, serve_table
from drivetrain.core.errors import InvalidSetting

if TYPE_CHECKING:
    from drivetrain.worker.sources import Resolved

_LIMITS = ("max_loaded", "idle_s", "turn_s", "room_wait_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetArguments:
    """What the flags and the file say about several models. The fields have the names that they have in the file."""

    models: tuple[str, ...] = ()
    max_loaded: int | None = None
    idle_s: float | None = None
    turn_s: float | None = None
    room_wait_s: float | None = None
    pinned: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, Any]:
        return {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One model of several, with settings of its own."""

    name: str
    reference: str
    resolved: Resolved


def add_fleet_flags(group: Any) -> None:
    number, count = options.number, options.whole_number
    group.add_argument(
        "--max-loaded", type=count, metavar="N", help="models in memory at once (default: as many as fit)"
    )
    group.add_argument(
        "--idle-s", type=number, metavar="X", help="seconds after which an unused model is unloaded (default: never)"
    )
    group.add_argument(
        "--turn-s", type=number, metavar="X", help="seconds that a busy model keeps its place (default: 5)"
    )
    group.add_argument(
        "--room-wait-s", type=number, metavar="X", help="seconds that a request waits for room (default: 60)"
    )
    group.add_argument(
        "--pin", action="append", default=[], metavar="NAME", help="load this model and keep it loaded; may be repeated"
    )
    group.add_argument(
        "--alias",
        action="append",
        type=_alias,
        default=[],
        metavar="NAME=MODEL",
        help="another name for a model; may be repeated",
    )


def _alias(text: str) -> tuple[str, str]:
    name, _, model = text.partition("=")
    if not name or not model:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=MODEL")
    return name, model


def read(args: argparse.Namespace) -> FleetArguments | None:
    """None if there is one model, and nothing that would load or unload it.

    If the file names the models, they are in `args.models` afterwards.
    """
    in_file = _in_file(args)
    given = {name: value for name in _LIMITS if (value := getattr(args, name)) is not None}
    several = replace(
        in_file,
        **{name: _checked(name, value, options.flag(name)) for name, value in given.items()},
        models=tuple(args.models) or in_file.models,
        pinned=tuple(args.pin) or in_file.pinned,
        aliases={**in_file.aliases, **dict(args.alias)},
    )
    if not several.models:
        raise InvalidSetting("name a MODEL, or list them as models under [serve] in the file", param="model")
    args.models = list(several.models)
    return several if replace(several, models=()) != FleetArguments() or _several(several.models) else None


def _several(models: Sequence[str]) -> bool:
    """Several URLs on their own are servers of one model."""
    from drivetrain.engines.remote.address import is_url

    return options.named_model(models[0])[0] is not None or (len(models) > 1 and not all(map(is_url, models)))


def _in_file(args: argparse.Namespace) -> FleetArguments:
    stated = {name: value for name, value in serve_table(args).items() if name in OF_SEVERAL}
    return FleetArguments(
        **{name: _checked(name, value, f"serve.{name} in the file") for name, value in stated.items()}
    )


def _checked(name: str, value: Any, origin: str) -> Any:
    if name in {"models", "pinned"}:
        good, what = isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of strings"
        value = tuple(value) if good else value
    elif name == "aliases":
        good, what = isinstance(value, dict) and all(isinstance(v, str) for v in value.values()), "a table of strings"
    elif name == "max_loaded":
        good, what = type(value) is int and value >= 1, "a whole number from 1"
    else:
        good, what = type(value) in {int, float} and value >= 0, "a number from 0"
    if not good:
        raise InvalidSetting(f"{origin} is {value!r}; it must be {what}", param=name)
    return value


def choose(args: argparse.Namespace, several: FleetArguments) -> list[FleetModel]:
    """Each model with its name and settings. Problems with any of them are reported here, before one is loaded."""
    if args.at_url is not None or args.setting_name is not None:
        raise InvalidSetting(
            "with several models, write NAME=MODEL instead of --name, and URL#NAME instead of --model", param="name"
        )
    return [_chosen(text, args) for text in several.models]


def _chosen(text: str, args: argparse.Namespace) -> FleetModel:
    from drivetrain import assembly
    from drivetrain.worker import sources

    named, reference = options.named_model(text)
    given = options.given_settings(args)
    resolved = sources.read_settings(assembly.SETTINGS, named or reference, given, config=args.config)
    usual = assembly.name_of(reference)
    name = named or resolved.settings.name or usual
    if name is None:
        raise InvalidSetting(f"{text!r} does not say which model: write URL#MODEL or NAME=URL", param="model")
    assembly.check_engine(resolved.settings)
    return FleetModel(name, reference, replace(resolved, settings=replace(resolved.settings, name=name)))
