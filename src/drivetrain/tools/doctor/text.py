"""A report as lines for a terminal: a screenful, the findings last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from drivetrain.core.errors import Cancelled
from drivetrain.core.stats import FINISHED
from drivetrain.store.display import size
from drivetrain.tools.doctor.amounts import many, percent, span
from drivetrain.tools.doctor.report import (
    FAILURES,
    Finding,
    HistogramTimes,
    ModelReport,
    ServerKind,
    ServerReport,
    Severity,
)

IN_FULL = 3
"""Up to this many loaded models are shown in full; with more, each has one line."""

MOST_LINES = 30
MOST_REFUSALS = 6
MOST_ALIKE = 5
_KINDS = {
    ServerKind.PEER: "an OpenAI API server",
    ServerKind.LOCKED: "a server",
    ServerKind.UNKNOWN: "an unknown kind of server",
}


def lines(report: ServerReport) -> list[str]:
    output = [f"{report.url}  {', '.join(headline(report))}", ""]
    loaded = [model for model in report.models if model.loaded]
    in_full = {model.name for model in loaded} if len(loaded) <= IN_FULL else set[str]()
    for model in report.models[:MOST_LINES]:
        output += ["", *_block(model), ""] if model.name in in_full else [_one_line(model)]
    if len(report.models) > MOST_LINES:
        output.append(f"… and {many(len(report.models) - MOST_LINES, 'model')} more (--json has all)")
    output += ["", *_rows(about_server(report)), "", *_findings(report)]
    return _without_double_gaps(output)


def headline(report: ServerReport) -> Iterator[str]:
    if report.kind is ServerKind.OURS:
        yield f"drivetrain {report.version}" if report.version else "drivetrain"
    else:
        yield _KINDS[report.kind] + (f" ({report.server})" if report.server else "")
    if not report.silent:
        yield "up" if report.uptime_s is None else f"up for {span(report.uptime_s)}"
    if report.ready is not None:
        yield "ready" if report.ready else "NOT READY"
    if report.latency_s is not None:
        yield f"answered in {span(report.latency_s)}"


def _one_line(model: ModelReport) -> str:
    load = _load(model) if model.loaded else []
    if model.waiting and not model.loaded:
        load = [f"{many(model.waiting, 'request')} waiting for it"]
    ended = [f"{model.ended:,} ended, {percent(model.share(*FAILURES))} failed"] if model.ended else []
    return f"{model.name}  {', '.join([model.state, *load, *ended])}"


def _block(model: ModelReport) -> list[str]:
    about = [f"{model.engine or '?'} on {model.device}" if model.device else model.engine or ""]
    about += [model.dtype or "", f"context {model.context_length:,}" if model.context_length else ""]
    named = f"  (also {', '.join(model.aliases)})" if model.aliases else ""
    head = f"{model.name}  {model.state}  {', '.join(filter(None, about))}{named}"
    return [head.rstrip(), *(f"  {row}" for row in _rows(about_model(model)))]


def about_model(model: ModelReport) -> Iterator[tuple[str, str]]:
    progress = "" if model.since_progress_s is None else f"; last progress {span(model.since_progress_s)} ago"
    yield "requests", ", ".join(_load(model)) + progress
    yield "ended", _ended(model)
    for name, times in (("queue", model.queue), ("first token", model.first_token)):
        yield name, _times(times, "request")
    yield "between tokens", _times(model.between_tokens, "gap")
    if model.prompt_tokens is not None:
        cached = (model.cached_tokens or 0) / model.prompt_tokens if model.prompt_tokens else 0.0
        found = f" ({percent(cached)} from the prefix cache)"
        yield "tokens", f"{model.prompt_tokens:,} in prompts{found}, {model.completion_tokens or 0:,} generated"
    engine = [] if model.kv_used is None else [f"KV cache {percent(model.kv_used)} full"]
    engine += [] if model.preemptions is None else [many(model.preemptions, "preemption")]
    engine += [] if model.restarts is None else [many(model.restarts, "restart")]
    if engine:
        yield "engine", ", ".join(engine)
    if model.upstreams:
        yield "upstreams", f"{sum(model.upstreams)} of {len(model.upstreams)} up"


def _load(model: ModelReport) -> list[str]:
    most_running = f" of {model.max_running:,}" if model.max_running else ""
    most_waiting = f" of {model.max_waiting:,}" if model.max_waiting is not None else ""
    return [f"{model.running or 0:,}{most_running} running", f"{model.waiting or 0:,}{most_waiting} waiting"]


def _ended(model: ModelReport) -> str:
    if not model.ended:
        return "none yet"
    finished = model.endings.get(FINISHED, 0)
    why = f" ({_counts(model.answers)})" if model.answers else ""
    rest = {name: number for name, number in model.endings.items() if name != FINISHED}
    others = f", {_counts(rest)}" if rest else ""
    return f"{model.ended:,}: {finished:,} finished{why}{others}; {percent(model.share(*FAILURES))} failed"


def _counts(counts: Mapping[str, int]) -> str:
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{number:,} {_NAMES.get(name, name)}" for name, number in most_first)


_NAMES = {Cancelled.code: "cancelled by the client"}


def _times(times: HistogramTimes | None, what: str) -> str:
    if times is None:
        return "nothing measured yet"
    over = "over " if times.p99_s >= times.beyond_s else ""
    return f"median {span(times.median_s)}, p99 {over}{span(times.p99_s)} ({many(times.count, what)})"


def about_server(report: ServerReport) -> Iterator[tuple[str, str]]:
    if report.kind is ServerKind.PEER and report.gauges:
        yield "gauges", ", ".join(f"{name} {value:g}" for name, value in report.gauges.items())
    if report.tokens_per_s:
        yield "now", f"{report.tokens_per_s:.1f} tokens per second"
    if report.refusals:
        shown = [f"{r.count:,} {r.reason}{f' ({r.param})' if r.param else ''}" for r in report.refusals]
        more = f", and {len(shown) - MOST_REFUSALS} more reasons" if len(shown) > MOST_REFUSALS else ""
        yield "refused", ", ".join(shown[:MOST_REFUSALS]) + more
    yield from _memory(report)


def memory_lines(report: ServerReport) -> list[str]:
    """What the server holds of each device."""
    return _rows(_memory(report))


def _memory(report: ServerReport) -> Iterator[tuple[str, str]]:
    for memory in report.memory:
        held = f"{size(memory.allocated_bytes)} held"
        yield f"memory {memory.device}", f"{held}, {size(memory.available_bytes)} free of {size(memory.total_bytes)}"


def _findings(report: ServerReport) -> Iterator[str]:
    """Findings that are the same for several models are printed together."""
    if not report.findings:
        yield "No findings: all is well."
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in report.findings:
        alike.setdefault((finding.level, finding.means, finding.remedy), []).append(finding)
    for (level, means, remedy), found in alike.items():
        mark = "!" if level == Severity.ACT else "-"
        yield from (f"{mark} {f'{one.model}: ' if one.model else ''}{one.what}" for one in found[:MOST_ALIKE])
        if len(found) > MOST_ALIKE:
            yield f"{mark} … and {len(found) - MOST_ALIKE} more of this kind"
        yield f"    {means}"
        yield f"    → {remedy}"


def _rows(pairs: Iterator[tuple[str, str]]) -> list[str]:
    found = list(pairs)
    width = max((len(name) for name, _ in found), default=0)
    return [f"{name:<{width}}  {value}" for name, value in found]


def _without_double_gaps(output: Sequence[str]) -> list[str]:
    return [line for before, line in zip(["", *output], output, strict=False) if line or before]
