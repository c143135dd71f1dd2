"""`serve` with several models: what the flags, the environment and the file's `[serve]` table say about them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drivetrain.cli.flags import options
from drivetrain.cli.flags.server_options import LIMITS, OF_SEVERAL, read_stated, serve_table
from drivetrain.core.errors import InvalidSetting

if TYPE_CHECKING:
    from drivetrain.worker.sources import Layer, Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetArguments:
    """What was stated about several models. The fields have the names that they have in the file."""

    models: tuple[str, ...] = ()
    max_loaded: int | None = None
    idle_s: float | None = None
    turn_s: float | None = None
    room_wait_s: float | None = None
    pinned: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    on_demand: bool = False
    """They are all that is pulled, and nobody named them: each is loaded when it is asked for."""

    @property
    def limits(self) -> dict[str, Any]:
        return {name: value for name in LIMITS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One model of several, with settings of its own."""

    name: str
    reference: str
    resolved: Resolved


def add_fleet_flags(group: Any) -> None:
    for name, one in LIMITS.items():
        options.add_setting(group, name, one, dest=name)
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

    If nobody names the models on the command line, those of the file or else all that are pulled are in `args.models`
    afterwards.
    """
    in_file = _in_file(args)
    named = tuple(args.models) or in_file.models
    models = named or _pulled()
    several = replace(
        in_file,
        **{name: value for name, (value, _) in _limits(args, models).items()},
        models=models,
        pinned=tuple(args.pin) or in_file.pinned,
        aliases={**in_file.aliases, **dict(args.alias)},
        on_demand=not named and len(models) > 1,
    )
    args.models = list(several.models)
    return several if replace(several, models=()) != FleetArguments() or _several(several.models) else None


def _pulled() -> tuple[str, ...]:
    """What can be served where nobody says what: the models in the store, the latest first."""
    from drivetrain.store.store import Store

    whole = [model for model in Store().list() if model.damage is None]
    if not whole:
        raise InvalidSetting(
            "name a MODEL: none has been pulled yet; drivetrain pull smollm2-135m fetches a small one, and drivetrain "
            "list --known shows others",
            param="model",
        )
    return tuple(model.name for model in sorted(whole, key=lambda model: model.pulled_at, reverse=True))


def told(args: argparse.Namespace, several: FleetArguments | None) -> Layer:
    """What holds for several models, and where each value comes from."""
    several, limits, table = several or FleetArguments(), _limits(args, args.models), serve_table(args)
    layer = {name: limits.get(name, (one.default, "default")) for name, one in LIMITS.items()}
    for name, by_flag in (("pinned", args.pin), ("aliases", args.alias)):
        value: Any = getattr(several, name)
        layer[name] = (value, "flag" if by_flag else f"file: serve.{name}" if name in table else "default")
    return layer


def _limits(args: argparse.Namespace, models: Sequence[str]) -> Layer:
    flags = {name: value for name in LIMITS if (value := getattr(args, name)) is not None}
    stated = read_stated(LIMITS, args, flags, os.environ)
    if not _is_one(args, models):
        return stated
    return {name: one for name, one in stated.items() if not one[1].startswith("environment")}


def _several(models: Sequence[str]) -> bool:
    return options.named_model(models[0])[0] is not None or (len(models) > 1 and not _one_on_servers(models))


def _one_on_servers(models: Sequence[str]) -> bool:
    """Several URLs on their own are servers of one model."""
    from drivetrain.engines.remote.address import is_url

    return all(map(is_url, models))


def _is_one(args: argparse.Namespace, models: Sequence[str]) -> bool:
    """Whether the models are told as one that always stays: then limits that all of a machine's servers get by its
    environment are not for this one."""
    return args.at_url is not None or args.setting_name is not None or (len(models) > 1 and _one_on_servers(models))


def _in_file(args: argparse.Namespace) -> FleetArguments:
    stated = {name: value for name, value in serve_table(args).items() if name in OF_SEVERAL and name not in LIMITS}
    return FleetArguments(
        **{name: _checked(name, value, f"serve.{name} in the file") for name, value in stated.items()}
    )


def _checked(name: str, value: Any, origin: str) -> Any:
    if name in {"models", "pinned"}:
        good, what = isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of strings"
        value = tuple(value) if good else value
    else:
        good, what = isinstance(value, dict) and all(isinstance(v, str) for v in value.values()), "a table of strings"
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
