"""One look at a server, and a second one if the first cannot tell a hanging engine from one that has just begun."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from drivetrain.tools.doctor.findings import findings
from drivetrain.tools.doctor.gather import gather
from drivetrain.tools.doctor.reading import ServerReader
from drivetrain.tools.doctor.report import ModelReport, ServerKind, ServerReport
from drivetrain.tools.doctor.values import count, number, table

STILL_S = 15.0
"""An engine with requests but no progress for this long gets a second look: it may have been idle until now."""

LOOK_AGAIN_S = 5.0


async def examine(reader: ServerReader) -> ServerReport:
    """Raises `InvalidSetting` if nothing answers."""
    report = gather(await reader.read())
    if report.kind is ServerKind.OURS and any(map(_still, report.models)):
        report = await _look_again(reader, report)
    return replace(report, findings=findings(report))


def _still(model: ModelReport) -> bool:
    return bool(model.running) and (model.since_progress_s or 0.0) >= STILL_S


async def _look_again(reader: ServerReader, report: ServerReport) -> ServerReport:
    began = time.monotonic()
    await asyncio.sleep(LOOK_AGAIN_S)
    states = table((await reader.status()).table.get("models"))
    waited_s = time.monotonic() - began
    models = [_seen_again(model, table(states.get(model.name)), waited_s) for model in report.models]
    return replace(report, models=tuple(models))


def _seen_again(model: ModelReport, state: dict[str, object], waited_s: float) -> ModelReport:
    """An engine that has made progress since the first look is not stalled."""
    still_s = number(state.get("seconds_since_progress"))
    if not _still(model) or still_s is None or not count(state.get("running")) or still_s < waited_s:
        return model
    return replace(model, stalled_s=still_s)
