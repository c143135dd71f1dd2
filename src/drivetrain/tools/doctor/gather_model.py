"""What all the pages say about one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from drivetrain.tools.doctor.report import HistogramTimes, ModelReport
from drivetrain.tools.doctor.series import Series
from drivetrain.tools.doctor.values import count, flag, number, table, text

T = TypeVar("T")

MAX_PARTS = 50
"""More names, endings or upstreams than one model can have."""


@dataclass(slots=True)
class ModelPages:
    """One model's part of each page."""

    status: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    admin: dict[str, Any] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)


def model_report(name: str, pages: ModelPages, series: Series) -> ModelReport:
    status, admin, about = pages.status, pages.admin, table(pages.card.get("capabilities"))
    failure, progress = table(admin.get("failure")), table(admin.get("progress"))
    upstreams = series.rows("drivetrain_upstream_up", model=name)

    def metric(short: str) -> float | None:
        return series.value(f"drivetrain_{short}", model=name)

    def counted(short: str) -> int | None:
        return count(metric(short))

    return ModelReport(
        name=name,
        state=text(status.get("state")) or text(pages.card.get("state")) or text(admin.get("state")) or "unknown",
        aliases=tuple(pages.aliases[:MAX_PARTS]),
        engine=text(about.get("engine")),
        device=text(about.get("device")),
        dtype=text(about.get("dtype")),
        context_length=count(about.get("context_length")),
        engine_alive=flag(status.get("engine_alive")),
        pinned=flag(admin.get("pinned")),
        loading=text(progress.get("what")),
        loading_share=number(progress.get("share")),
        failure=text(failure.get("message")),
        retry_in_s=number(failure.get("retry_in_s")),
        loads=counted("model_loads_total"),
        failed_loads=counted("model_failed_loads_total"),
        unloads=counted("model_unloads_total"),
        running=_first(count(status.get("running")), counted("requests_running")),
        max_running=count(about.get("max_concurrency")),
        waiting=_first(count(status.get("waiting")), counted("requests_waiting")),
        max_waiting=count(status.get("max_waiting")),
        since_progress_s=_first(number(status.get("seconds_since_progress")), metric("last_progress_seconds")),
        endings=_endings(name, series) or _counts(table(status.get("endings"))),
        answers=_by(series, "drivetrain_answers_total", "reason", name),
        queue=_times(series, "queue_seconds", name),
        first_token=_times(series, "first_token_seconds", name),
        between_tokens=_times(series, "inter_token_seconds", name),
        prompt_tokens=counted("prompt_tokens_total"),
        cached_tokens=counted("cached_prompt_tokens_total"),
        completion_tokens=_first(counted("completion_tokens_total"), count(status.get("completion_tokens"))),
        kv_used=metric("kv_cache_used_ratio"),
        preemptions=counted("preemptions_total"),
        restarts=counted("engine_restarts_total"),
        upstreams=tuple(up > 0 for _, up in upstreams[:MAX_PARTS]),
    )


def _endings(name: str, series: Series) -> dict[str, int]:
    return _by(series, "drivetrain_requests_total", "ending", name)


def _by(series: Series, metric: str, label: str, model: str) -> dict[str, int]:
    return {labels.get(label, ""): int(n) for labels, n in series.rows(metric, model=model)[:MAX_PARTS] if n}


def _counts(found: dict[str, Any]) -> dict[str, int]:
    return {name: found_count for name, value in list(found.items())[:MAX_PARTS] if (found_count := count(value))}


def _times(series: Series, metric: str, model: str) -> HistogramTimes | None:
    buckets = series.buckets(f"drivetrain_{metric}", model=model)
    if buckets is None:
        return None
    beyond_s = buckets.bounds[-2] if len(buckets.bounds) > 1 else 0.0
    return HistogramTimes(int(buckets.count), buckets.quantile(0.5), buckets.quantile(0.99), beyond_s)


def _first(*found: T | None) -> T | None:
    return next((value for value in found if value is not None), None)
