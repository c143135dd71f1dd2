"""From the pages of a server to a report; `gather_model.py` does this for each model."""

from __future__ import annotations

import email.utils
from collections.abc import Sequence
from typing import Any

from drivetrain.tools.doctor.gather_model import MAX_PARTS, ModelPages, model_report
from drivetrain.tools.doctor.page import FetchedPage, Pages
from drivetrain.tools.doctor.report import Memory, ModelReport, Refusal, ServerKind, ServerReport, Unread
from drivetrain.tools.doctor.values import count, number, table, tables, text

MAX_MODELS = 200

_PEER_GAUGES = {
    "running": ("vllm:num_requests_running", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "llamacpp:requests_deferred"),
    "kv_used": ("vllm:kv_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"),
}
"""Other servers' names for gauges that we have too."""


def gather(pages: Pages) -> ServerReport:
    """The report, without findings."""
    kind, series, clock = _kind(pages), pages.metrics.series, _clock(pages.health)
    began = series.value("process_start_time_seconds")
    now = pages.asked_at if clock is None else clock
    latency_s = pages.health.took_s if pages.health.status else None
    return ServerReport(
        url=str(pages.address).removesuffix("/v1"),
        kind=kind,
        local=pages.address.local,
        encrypted=pages.address.secure,
        sent_key=pages.sent_key,
        sent_admin_key=pages.sent_admin_key,
        needs_key=_needs_key(pages),
        server=pages.health.headers.get("server"),
        version=text(pages.status.table.get("version")),
        ready=True if pages.ready.ok else False if pages.ready.status == 503 else None,
        latency_s=latency_s,
        clock_ahead_s=None if clock is None else clock - pages.asked_at,
        uptime_s=None if not began else max(0.0, now - began),
        tokens_per_s=number(pages.status.table.get("tokens_per_s")),
        models=_models(pages) if kind is ServerKind.OURS else _listed(pages),
        refusals=_refusals(pages),
        memory=_memory(pages.status.table.get("memory")),
        gauges=_gauges(pages) if kind is ServerKind.PEER else {},
        unread=tuple(_unread(pages)),
    )


def _kind(pages: Pages) -> ServerKind:
    cards = tables(pages.models.table.get("data"))
    if (
        any(card.get("owned_by") == "drivetrain" for card in cards)
        or "drivetrain_build_info" in pages.metrics.series
        or {"version", "models", "tokens_per_s"} <= pages.status.table.keys()
    ):
        return ServerKind.OURS
    if "data" in pages.models.table:
        return ServerKind.PEER
    return ServerKind.LOCKED if any(page.refused for page in (pages.status, pages.models)) else ServerKind.UNKNOWN


def _needs_key(pages: Pages) -> bool | None:
    without = pages.status if pages.open is None else pages.open
    return True if without.refused else False if without.ok else None


def _clock(page: FetchedPage) -> float | None:
    """The server's clock, in seconds since the epoch."""
    try:
        return email.utils.parsedate_to_datetime(page.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError, OSError):
        return None


def _models(pages: Pages) -> tuple[ModelReport, ...]:
    states = table(pages.status.table.get("models"))
    by_name: dict[str, ModelPages] = {name: ModelPages(status=table(state)) for name, state in states.items()}
    for card in tables(pages.models.table.get("data")):
        name, alias_of = text(card.get("id")), text(card.get("alias_of"))
        if name and not alias_of:
            known = by_name.setdefault(name, ModelPages())
            known.card = card | (pages.cards[name].table if name in pages.cards else {})
        elif name and alias_of:
            by_name.setdefault(alias_of, ModelPages()).aliases.append(name)
    for row in tables(pages.admin.table.get("data")):
        if name := text(row.get("id")):
            by_name.setdefault(name, ModelPages()).admin = row
    for labels, _ in pages.metrics.series.rows("drivetrain_requests_running"):
        by_name.setdefault(labels.get("model", ""), ModelPages())
    return tuple(
        model_report(name, about, pages.metrics.series) for name, about in list(by_name.items())[:MAX_MODELS] if name
    )


def _listed(pages: Pages) -> tuple[ModelReport, ...]:
    """The models of another kind of server."""
    names = [text(card.get("id")) for card in tables(pages.models.table.get("data"))]
    return tuple(ModelReport(name=name, state="listed") for name in names[:MAX_MODELS] if name)


def _refusals(pages: Pages) -> tuple[Refusal, ...]:
    rows = pages.metrics.series.rows("drivetrain_refusals_total")
    found = [Refusal(labels.get("reason", ""), labels.get("param", ""), int(n)) for labels, n in rows if n]
    return tuple(sorted(found, key=lambda refusal: -refusal.count))[:MAX_MODELS]


def _memory(devices: Any) -> tuple[Memory, ...]:
    kinds = ("allocated", "cached", "total", "available")
    return tuple(
        Memory(text(found.get("device")) or "?", *(count(found.get(f"{kind}_bytes")) or 0 for kind in kinds))
        for found in tables(devices)[:MAX_PARTS]
    )


def _gauges(pages: Pages) -> dict[str, float]:
    found: dict[str, float] = {}
    for ours, theirs in _PEER_GAUGES.items():
        values = [value for name in theirs if (value := pages.metrics.series.value(name)) is not None]
        found |= {ours: values[0]} if values else {}
    return found


def _unread(pages: Pages) -> Sequence[Unread]:
    """The pages that could not be read. A 503 from `/ready` is an answer."""
    return [
        Unread(path, page.status, page.reason)
        for path, page in pages.named.items()
        if not (page.ok or (path == "/ready" and page.status == 503))
    ]
