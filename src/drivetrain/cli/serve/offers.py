"""From the chosen models to a fleet that can load them."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain import assembly
from drivetrain.cli.serve.fleet import FleetArguments, FleetModel
from drivetrain.core.engine import Progress
from drivetrain.core.errors import DrivetrainError, InvalidSetting
from drivetrain.core.stats import Stats
from drivetrain.engines.remote.address import is_url
from drivetrain.scale.fleet.failure import reason
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.scale.fleet.policy import FleetLimits
from drivetrain.store.gguf_header import num_parameters
from drivetrain.store.references import LocalPath, parse
from drivetrain.store.store import Store
from drivetrain.telemetry.memory import host_memory, settle_heap
from drivetrain.telemetry.tracing import GenAiTracer

BESIDE_WEIGHTS = 1.2
"""The memory of a model per byte of its weights, with keys, values and the rest. A rough figure: if it is too low, the
load runs out of memory, and is tried once more without the idle models."""


def make_fleet(
    chosen: Sequence[FleetModel], several: FleetArguments, progress: Progress, tracer: GenAiTracer | None = None
) -> Fleet:
    names = {one.name for one in chosen}
    for name in (*several.pinned, *several.aliases.values()):
        if name not in names:
            raise InvalidSetting(f"there is no model {name!r} here; there are {', '.join(sorted(names))}", param="name")
    offers = [_offer(one, several, progress, tracer) for one in chosen]
    limits = FleetLimits(**several.limits)
    return Fleet(offers, limits, free_bytes=free_bytes, settled=settle_heap, on_demand=several.on_demand)


def _offer(one: FleetModel, several: FleetArguments, progress: Progress, tracer: GenAiTracer | None) -> Offer:
    settings, stats = one.resolved.settings, Stats()  # which continue when it is loaded again

    async def open_worker(report: Progress) -> Opened:
        def report_load(what: str, share: float | None) -> None:
            report(what, share)
            progress(f"{one.name}: {what}", share)

        return await assembly.Worker.with_settings(
            one.reference, settings, progress=report_load, tracer=tracer, stats=stats, warm=True
        )

    return Offer(
        name=one.name,
        open=open_worker,
        aliases=tuple(alias for alias, name in several.aliases.items() if name == one.name),
        pinned=one.name in several.pinned,
        max_waiting=settings.max_waiting,
        timeout_s=settings.timeout_s,
        max_timeout_s=settings.max_timeout_s,
        size_bytes=lambda: size_bytes(one.reference),
        spoilt=lambda: spoilt(one.reference),
        stats=stats,
    )


def size_bytes(reference: str) -> int:
    """About the memory that a model will take, by its weights on this disk; 0 if they are not here."""
    if reference == "fake" or is_url(reference):
        return 0
    try:
        model = Store().resolve(reference)
        path = model.path
        if model.form == "F16":
            return round(BESIDE_WEIGHTS * 2 * num_parameters(path))
        files = [path] if path.is_file() else path.glob("*.safetensors")
        return round(BESIDE_WEIGHTS * sum(file.stat().st_size for file in files))
    except (DrivetrainError, OSError):
        return 0  # loading it will say why


def spoilt(reference: str) -> str:
    """Why the files of a path cannot be loaded. A damaged model that was pulled is pulled again instead."""
    if reference == "fake" or is_url(reference):
        return ""
    try:
        if isinstance(parse(reference), LocalPath):
            Store().resolve(reference)
    except DrivetrainError as exc:
        return reason(exc)
    return ""


def free_bytes() -> float:
    """Of the host's memory. A system that does not report it counts as having enough."""
    return host_memory().available_bytes or float("inf")
