"""A report as text: tables for a terminal or for Markdown, and the sentences below them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from drivetrain.store.display import size
from drivetrain.tools.bench.ceilings import Ceilings
from drivetrain.tools.bench.figures import Percentiles, Spread
from drivetrain.tools.bench.report import BenchReport, Figures, NamedTarget

Table = tuple[list[str], list[list[str]]]
"""The head and the rows."""

NONE = "–"


def figures_table(report: BenchReport) -> Table:
    head = ["load", "target", "tokens/s", "requests/s", "first token ms", "between ms", "answer s", "failed"]
    rows = [
        [
            level.label,
            side.target,
            _spread(side.tokens_per_s),
            number(None if side.requests_per_s is None else side.requests_per_s.median),
            _three(side.first_token_s, 1000),
            _three(side.between_events_s, 1000),
            _three(side.answer_s, 1),
            str(sum(side.failures.values())),
        ]
        for level in report.levels
        for side in level.sides
    ]
    return head, rows


def against_table(report: BenchReport) -> Table:
    """No rows if there is only one side, or no pair."""
    head = ["load", "pairs", "throughput", "first token", "first token later by ms"]
    rows = []
    for level in report.levels:
        if (found := level.against) is not None:
            later = found.first_token_later_s
            shifted = (
                None if later is None else Spread(*(1000 * value for value in (later.median, later.low, later.high)))
            )
            ratios = [_ratio(found.throughput_ratio), _ratio(found.first_token_ratio), _spread(shifted)]
            rows.append([level.label, str(found.pairs), *ratios])
    return head, rows


def legend(report: BenchReport) -> list[str]:
    lines = ["tokens/s: the median round (lowest..highest). Times: 50th / 90th / 99th percentile of all answers."]
    if len(report.targets) == 2:
        ours, theirs = (target.label for target in report.targets)
        lines.append(f"Ratios: {ours} over {theirs}, median over pairs of rounds (lowest..highest).")
    return lines


def sentences(report: BenchReport) -> list[str]:
    """The targets, the workload, the ceilings and how much of them was used, and the notes."""
    return [
        *map(_target, report.targets),
        *(f"{target.label}: {note}" for target in report.targets for note in target.facts.stated.get("notes", ())),
        _workload(report),
        *_ceilings(report),
        *report.notes,
        *(() if report.complete else ("The run was not completed: this is what was measured.",)),
    ]


def markdown(report: BenchReport) -> str:
    parts = [f"# {' against '.join(target.label for target in report.targets)}", f"`{report.command}`"]
    parts.append(_machine(report))
    parts.append(_markdown_table(figures_table(report)))
    if (against := against_table(report))[1]:
        parts.append(_markdown_table(against))
    parts.append("  \n".join(legend(report)))
    parts.append("\n".join(f"- {sentence}" for sentence in sentences(report)))
    return "\n\n".join(parts) + "\n"


def _target(target: NamedTarget) -> str:
    facts = target.facts
    known = [facts.engine, facts.device, facts.dtype]
    weights = facts.weights
    held = (
        f"{weights.num_parameters / 1e6:.1f} million parameters, {size(weights.file_bytes)} on disk" if weights else ""
    )
    settings = facts.stated.get("settings") or {}
    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
    parts = [part for part in (" ".join(filter(None, known)), held, shown) if part]
    return f"{target.label}: {facts.model} ({'; '.join([facts.kind, *parts])})."


def _workload(report: BenchReport) -> str:
    work = report.workload
    prompts = [side.prompt_tokens for level in report.levels for side in level.sides if side.prompt_tokens]
    low, high = min((p.low for p in prompts), default=0), max((p.high for p in prompts), default=0)
    real = f" (measured: {low:g} to {high:g})" if prompts else ""
    shared = f", the first {work.shared_prefix} shared" if work.shared_prefix else ""
    cached = "".join(f", {count} of {label}'s tokens from a cache" for label, count in _cached(report).items())
    rounds = f"{work.rounds} measured round{'s' if work.rounds > 1 else ''}"
    return (
        f"Prompts of about {work.prompt_tokens} tokens{real}{shared}{cached}; {work.max_tokens} new tokens, "
        f"greedy; {rounds} after one warm-up round; seed {work.seed}."
    )


def _cached(report: BenchReport) -> dict[str, int]:
    """By target, if it reports them: tokens of the prompt form's own beginning, or of the shared prefix."""
    found: Counter[str] = Counter()
    for level in report.levels:
        for side in level.sides:
            found[side.target] += side.cached_tokens
    return dict(+found)


def _ceilings(report: BenchReport) -> list[str]:
    found = report.ceilings
    if not isinstance(found, Ceilings):
        return [f"Ceilings: not measured ({found.why})."]
    lines = [
        f"Ceilings of the {found.device} in this run ({found.measured_with}): memory read "
        f"{found.memory_gb_per_s:.1f} GB/s, {found.dtype} matrix product {found.product_gflop_per_s:.0f} GFLOP/s."
    ]
    for level in report.levels:
        lines += [f"{level.label}, {side.target}: {text}." for side in level.sides if (text := _reached(side))]
    return lines


def _reached(side: Figures) -> str:
    found = side.reached
    if found is None or (found.memory_share is None and found.product_share is None):
        return ""
    if found.memory_share is not None:
        return f"decoding at {found.tokens_per_s:.1f} tokens/s uses {found.memory_share:.0%} of the memory bandwidth"
    return f"decoding at {found.tokens_per_s:.1f} tokens/s uses {found.product_share:.0%} of the matrix-product limit"


def _machine(report: BenchReport) -> str:
    known = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in known.get("versions", {}).items())
    commit = f", commit {known['commit']}" if known.get("commit") else ""
    return (
        f"{report.began}, {known['cpu']['model']}, {known['cpu']['usable']} cores, "
        f"{size(known['memory']['total_bytes'])} of memory; {versions}{commit}."
    )


def _markdown_table(table: Table) -> str:
    head, rows = table
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _three(found: Percentiles, scale: float) -> str:
    values: Iterable[float | None] = (found.p50, found.p90, found.p99)
    return NONE if found.count == 0 else " / ".join(number(None if v is None else v * scale) for v in values)


def _spread(found: Spread | None) -> str:
    return NONE if found is None else f"{number(found.median)} ({number(found.low)}..{number(found.high)})"


def _ratio(found: Spread | None) -> str:
    return NONE if found is None else f"{found.median:.3f} ({found.low:.3f}..{found.high:.3f})"


def number(value: float | None) -> str:
    """Three significant digits, or all that come before the point."""
    if value is None:
        return NONE
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
