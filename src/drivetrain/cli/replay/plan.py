"""From receipts and arguments to the workers that replay them.

A receipt may come from anybody. So of what it says only the name of a model that is here already is opened, with the
settings that change its numbers, and nothing is fetched or asked elsewhere unless the command line says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain import assembly
from drivetrain.cli.flags import options
from drivetrain.cli.flags.engine_settings import settings_for
from drivetrain.core.errors import InvalidSetting
from drivetrain.core.receipt import Receipt
from drivetrain.engines.remote.address import is_url
from drivetrain.tools.replay.reading import Entry
from drivetrain.worker import sources
from drivetrain.worker.sources import Resolved

CHANGE_NUMBERS = ("dtype", "quantize")
"""Settings of an engine that a receipt's own engine is opened with again."""


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """One worker, and the receipts that it replays: in groups of one model and engine. `fetches`: it may be pulled."""

    model: str
    resolved: Resolved
    groups: tuple[tuple[Entry, ...], ...]
    fetches: bool


def grouped(entries: Iterable[Entry]) -> list[tuple[Entry, ...]]:
    """By what made them; those that are no receipts come last."""
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        receipt = entry.receipt
        key = None if receipt is None else (receipt.model, receipt.engine, receipt.dtype, str(receipt.settings))
        groups.setdefault(key, []).append(entry)
    broken = groups.pop(None, [])
    return [tuple(group) for group in (*groups.values(), *([broken] if broken else []))]


def plan(groups: Iterable[tuple[Entry, ...]], args: argparse.Namespace) -> list[PlannedWorker]:
    """Groups that one worker can replay share it. Raises `InvalidSetting`."""
    given = options.given_settings(args)
    found: dict[tuple[str, str], PlannedWorker] = {}
    for group in groups:
        receipt = group[0].receipt
        if receipt is None:
            continue
        model, settings = _model(receipt, args), _settings(receipt, given, args)
        resolved = sources.read_settings(assembly.SETTINGS, model, settings, config=args.config)
        assembly.check_engine(resolved.settings)
        key = (model, resolved.explain())
        known = found.get(key)
        groups_of = (*(known.groups if known is not None else ()), group)
        found[key] = PlannedWorker(model, resolved, groups_of, args.model is not None or args.url is not None)
    return list(found.values())


def _model(receipt: Receipt, args: argparse.Namespace) -> str:
    if args.url is not None:
        if not is_url(args.url) or "#" in args.url:
            raise InvalidSetting("--url must be a URL, such as http://127.0.0.1:8000/v1", param="url")
        return f"{args.url}#{args.model or receipt.model}"
    return args.model or receipt.model


def _settings(receipt: Receipt, given: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The receipt's own engine, unless another one is named, or follows from the model that is."""
    if args.url is not None or (args.model is not None and is_url(args.model)):
        return dict(given)
    known = receipt.engine in assembly.ENGINES and receipt.engine != "remote"
    engine = given.get("engine", receipt.engine if known else "auto")
    if engine not in assembly.ENGINES:
        return {**given, "engine": engine}
    kept = {name: receipt.settings[name] for name in CHANGE_NUMBERS if name in receipt.settings}
    own = settings_for(engine, kept) if engine == receipt.engine else {}
    return {**own, **given, "engine": engine}
