"""From the arguments of `drivetrain bench` to the targets of a session."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from drivetrain import assembly
from drivetrain.cli.bench.options import AGAINST_KEY_VARIABLE, KEY_VARIABLES
from drivetrain.cli.flags import options
from drivetrain.cli.flags.engine_settings import parse_setting, settings_for
from drivetrain.cli.flags.keys import key_in_environment, sendable
from drivetrain.cli.terminal.values import plain
from drivetrain.core.engine import ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import InvalidSetting
from drivetrain.http.address import Address
from drivetrain.tools.bench.in_process import InProcess
from drivetrain.tools.bench.remote import Endpoint, Remote, find_model, get, optional_fields
from drivetrain.tools.bench.served import serving
from drivetrain.tools.bench.target import Target, TargetFacts
from drivetrain.tools.bench.weights import Weights, weigh
from drivetrain.worker import sources
from drivetrain.worker.settings import Settings
from drivetrain.worker.sources import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSide:
    """A model on this machine. `given` are the settings that were given for this side."""

    model: str
    given: dict[str, Any]
    resolved: Resolved
    config: Path | None
    chat: bool
    http: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSide:
    """A server. Without a model's name, the server is asked which one it has."""

    address: Address
    model: str | None
    key: str
    chat: bool
    omit: frozenset[str]
    extra: dict[str, Any]


PlannedSide = LocalSide | UrlSide


def read_sides(args: argparse.Namespace, *, max_streams: int) -> list[PlannedSide]:
    """One, or two with `--against`. Raises `InvalidSetting`."""
    given = options.given_settings(args)
    first = _url(args, args.model, args.url_model, _key(*KEY_VARIABLES)) if _is_url(args.model) else None
    if first is None and args.url_model is not None and not _is_url(args.against or ""):
        raise InvalidSetting("--model is for a URL; here TARGET is the model")
    sides: list[PlannedSide] = [first or _local(args, args.model, given, max_streams)]
    if args.against is not None:
        sides.append(_second(args, given, sides[0], max_streams))
    elif args.against_model is not None:
        raise InvalidSetting("--against-model needs --against URL")
    if not any(isinstance(side, LocalSide) for side in sides):
        local_flags = [*given, *(("config",) if args.config else ()), *(("http",) if args.http else ())]
        if local_flags:
            raise InvalidSetting(
                f"{options.flag(local_flags[0])} is for a model; a server at a URL has its own settings"
            )
    if not any(isinstance(side, UrlSide) for side in sides) and (args.omit or args.body is not None):
        raise InvalidSetting("--omit and --body are for servers at a URL")
    return sides


def _second(args: argparse.Namespace, given: dict[str, Any], first: PlannedSide, max_streams: int) -> PlannedSide:
    if _is_url(args.against):
        key = _key(AGAINST_KEY_VARIABLE) if isinstance(first, UrlSide) else _key(*KEY_VARIABLES)
        model = args.against_model or (None if isinstance(first, UrlSide) else args.url_model)
        return _url(args, args.against, model, key)
    if args.against_model is not None:
        raise InvalidSetting("--against-model is for a URL; give model=NAME in --against")
    changes = _changes(args.against)
    model = changes.pop("model", None if isinstance(first, UrlSide) else args.model)
    if model is None:
        raise InvalidSetting("--against needs a model here: a URL, or model=NAME with settings")
    return _local(args, model, _changed(given, changes), max_streams)


def _changes(text: str) -> dict[str, Any]:
    """`native` is an engine; `engine=native,max_batch=8` are settings."""
    if "=" not in text:
        assembly.check_engine(Settings(engine=text))
        return {"engine": text}
    found: dict[str, Any] = {}
    for part in options.comma_list(text):
        name, _, model = part.partition("=")
        if name.strip() == "model" and model.strip():
            found["model"] = model.strip()
        else:
            name, value = parse_setting(part, "--against")
            found[name] = value
    return found


def _changed(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Another engine keeps those of the first side's settings that it has."""
    engine = changes.get("engine")
    return (settings_for(engine, given) if engine in assembly.ENGINES else given) | changes


def _local(args: argparse.Namespace, model: str, given: dict[str, Any], max_streams: int) -> LocalSide:
    """The queue has room for all streams of a closed loop, unless a setting limits it."""
    resolved = sources.read_settings(assembly.SETTINGS, model, given, config=args.config)
    if resolved.origins["max_waiting"] == "default" and max_streams > resolved.settings.max_waiting:
        given = given | {"max_waiting": max_streams}
        resolved = sources.read_settings(assembly.SETTINGS, model, given, config=args.config)
    assembly.check_engine(resolved.settings)
    chat = args.api == "chat"
    return LocalSide(model=model, given=given, resolved=resolved, config=args.config, chat=chat, http=args.http)


def _url(args: argparse.Namespace, url: str, model: str | None, key: str) -> UrlSide:
    return UrlSide(
        address=Address.parse(url, param="target"),
        model=model,
        key=key,
        chat=args.api == "chat",
        omit=optional_fields(args.omit),
        extra=args.body or {},
    )


def _key(*variables: str) -> str:
    return sendable(*key_in_environment(*variables))


def _is_url(text: str) -> bool:
    return "://" in text


# Opening


@dataclass(frozen=True, slots=True)
class LocalParts:
    """A local side whose weights are on this disk. Its engine is not loaded yet; behind HTTP it never is."""

    side: LocalSide
    parts: assembly.Parts


def find(side: PlannedSide, progress: Progress) -> LocalParts | UrlSide:
    """Fetch what is missing, and refuse now what would be refused later."""
    if isinstance(side, UrlSide):
        return side
    return LocalParts(side, assembly.open_parts(side.model, side.resolved.settings, progress=progress))


@contextlib.asynccontextmanager
async def opened(found: LocalParts | UrlSide, progress: Progress) -> AsyncIterator[Target]:
    """A target that is ready, and freed at the end."""
    if isinstance(found, UrlSide):
        yield await _open_url(found)
    elif found.side.http:
        async with serving(found.side.model, _arguments(found.side)) as served:
            progress("asking the server what it is", None)
            yield await _open_served(found, served.url, served.key)
    else:
        parts = found.parts
        async with parts.opening(progress) as worker:
            known = worker.metadata
            facts = TargetFacts(
                kind="in this process",
                model=known.name,
                engine=known.engine,
                device=known.device,
                dtype=known.dtype,
                max_concurrency=worker.capabilities.max_concurrency,
                weights=_weights(found.parts.spec),
                stated={"settings": plain(found.side.given), "versions": dict(known.versions), "notes": known.notes},
            )
            yield InProcess(worker, label=known.engine, facts=facts, chat=found.side.chat)


async def _open_url(side: UrlSide) -> Remote:
    model = side.model or await find_model(side.address, side.key)
    endpoint = Endpoint(
        address=side.address, model=model, key=side.key, chat=side.chat, omit=side.omit, extra=side.extra
    )
    stated = {"url": str(side.address), "omitted": sorted(side.omit), "extra": side.extra}
    return Remote(
        endpoint, label=side.address.authority, facts=TargetFacts(kind="over HTTP", model=model, stated=stated)
    )


async def _open_served(found: LocalParts, url: str, key: str) -> Remote:
    address = Address.parse(url, param="target")
    name = await find_model(address, key)
    endpoint = Endpoint(address=address, model=name, key=key, chat=found.side.chat)
    known = (await get(endpoint, f"/models/{quote(name)}"))["capabilities"]
    facts = TargetFacts(
        kind="drivetrain serve",
        model=name,
        engine=known["engine"],
        device=known["device"],
        dtype=known["dtype"],
        max_concurrency=known["max_concurrency"],
        weights=_weights(found.parts.spec),
        stated={"settings": plain(found.side.given)},
    )
    return Remote(endpoint, label=known["engine"], facts=facts)


def _weights(spec: ModelSpec) -> Weights | None:
    return None if spec.format is WeightsFormat.NONE else weigh(spec.path)


def _arguments(side: LocalSide) -> list[str]:
    """The settings of a side as flags of `drivetrain serve`."""
    arguments = ["--config", str(side.config)] if side.config else []
    return arguments + [options.as_argument(name, value) for name, value in side.given.items()]


def name_apart(targets: list[Target], against: str | None) -> None:
    """Give the sides different labels: if they are the same, the second one says how it differs."""
    if len(targets) == 2 and targets[0].label == targets[1].label:
        difference = str(targets[1].facts.model) if targets[0].facts.model != targets[1].facts.model else str(against)
        targets[1].label = (
            f"{targets[1].label} {difference}" if difference not in targets[1].label else f"{difference} again"
        )
