"""The results of a run: figures of each side at each level, ratios of the sides, and notes that qualify them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.tools.bench.ceilings import Ceilings, NotMeasured, Reached, reached
from drivetrain.tools.bench.figures import Percentiles, Spread, percentiles, spread, thinned
from drivetrain.tools.bench.outcome import RequestOutcome, Round
from drivetrain.tools.bench.session import Played
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.workload import Closed, Level, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTarget:
    label: str
    facts: TargetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    tokens_per_s: float
    requests_per_s: float
    first_token_s: float | None
    decode_tokens_per_s: float | None
    wall_s: float
    answers: int
    failed: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One side at one level. Rates are per round, percentiles over the answers of all rounds."""

    target: str
    tokens_per_s: Spread | None
    requests_per_s: Spread | None
    first_token_s: Percentiles
    between_events_s: Percentiles
    answer_s: Percentiles
    first_token_values_s: tuple[float, ...]
    between_events_values_s: tuple[float, ...]
    """Sorted, and of many not all."""
    answers: int
    failures: Mapping[str, int]
    first_failures: Mapping[str, str]
    """The first message of each kind."""
    prompt_tokens: Spread | None
    cached_tokens: int
    completion_tokens: int
    events: int
    other_lengths: Mapping[int, int]
    """How many answers had a different length from the requested one, by length."""
    uncounted: int
    """Answers without usage; their events were counted as tokens."""
    reached: Reached | None
    rounds: tuple[RoundFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The first side over the second, by pairs of rounds. Higher is better, except for the first token."""

    pairs: int
    throughput_ratio: Spread
    first_token_ratio: Spread | None
    first_token_later_s: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    level: Level
    label: str
    sides: tuple[Figures, ...]
    against: Against | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    command: str
    began: str
    machine: Mapping[str, Any]
    workload: Workload
    targets: tuple[NamedTarget, ...]
    ceilings: Ceilings | NotMeasured
    levels: tuple[LevelReport, ...]
    notes: tuple[str, ...]
    complete: bool
    """False if the run was interrupted, or if a side refused everything."""


def make_level(
    played: Played, targets: Sequence[NamedTarget], ceilings: Ceilings | NotMeasured, workload: Workload
) -> LevelReport:
    sides = [
        _figures(target, rounds, ceilings, workload) for target, rounds in zip(targets, played.rounds, strict=True)
    ]
    against = compare(*played.rounds) if len(sides) == 2 else None
    return LevelReport(level=played.level, label=played.level.label, sides=tuple(sides), against=against)


def compare(ours: Sequence[Round], theirs: Sequence[Round]) -> Against | None:
    """None if no pair has answers on both sides."""
    both = [(a, b) for a, b in zip(ours, theirs, strict=False) if a.complete and b.complete and a.answers and b.answers]
    throughput = spread(a.tokens_per_s / b.tokens_per_s for a, b in both if b.tokens_per_s)
    if throughput is None:
        return None
    firsts = [(a.first_s, b.first_s) for a, b in both if a.first_s is not None and b.first_s is not None]
    return Against(
        pairs=len(both),
        throughput_ratio=throughput,
        first_token_ratio=spread(a / b for a, b in firsts if b > 0),
        first_token_later_s=spread(a - b for a, b in firsts),
    )


def notes(levels: Sequence[LevelReport], targets: Sequence[NamedTarget], workload: Workload) -> list[str]:
    """What a reader of the table must know, in whole sentences."""
    found: list[str] = []
    for level in levels:
        for side, target in zip(level.sides, targets, strict=True):
            found += [
                f"{level.label}, {side.target}: {text}." for text in _remarks(level.level, side, target, workload)
            ]
    return found


def _remarks(level: Level, side: Figures, target: NamedTarget, workload: Workload) -> list[str]:
    remarks = []
    for kind, count in side.failures.items():
        remarks.append(
            f"{count} of {side.answers + sum(side.failures.values())} requests failed: {kind}: "
            f"{side.first_failures[kind]}"
        )
    if side.other_lengths:
        lengths, count = sorted(side.other_lengths), sum(side.other_lengths.values())
        remarks.append(
            f"{count} of {side.answers} answers had {_range(lengths)} tokens instead of {workload.max_tokens}"
        )
    if side.uncounted:
        remarks.append(f"{side.uncounted} answers came without usage, so each event counts as one token")
    if side.events and side.events < 0.95 * side.completion_tokens:
        each = side.completion_tokens / side.events
        remarks.append(
            f"events carried {each:.1f} tokens on average, so times between events are not times between tokens"
        )
    most = target.facts.max_concurrency
    if isinstance(level, Closed) and most is not None and most < level.streams:
        remarks.append(f"it runs {most} requests at once (the others wait); see the settings slots and max_running")
    if any(not played.complete for played in side.rounds):
        remarks.append("its last round was interrupted, and counts only if no round is complete")
    return remarks


def _figures(target: NamedTarget, rounds: list[Round], ceilings: Ceilings | NotMeasured, workload: Workload) -> Figures:
    whole = [played for played in rounds if played.complete] or rounds
    answers = [answer for played in whole for answer in played.answers]
    failed = [outcome for played in whole for outcome in played.outcomes if outcome.failure is not None]
    firsts = [first for answer in answers if (first := answer.first_s) is not None]
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    lengths = Counter(answer.completion_tokens for answer in answers if answer.counted)
    del lengths[workload.max_tokens]
    return Figures(
        target=target.label,
        tokens_per_s=spread(played.tokens_per_s for played in whole),
        requests_per_s=spread(played.requests_per_s for played in whole),
        first_token_s=percentiles(firsts),
        between_events_s=percentiles(gaps),
        answer_s=percentiles(answer.total_s for answer in answers),
        first_token_values_s=thinned(firsts),
        between_events_values_s=thinned(gaps),
        answers=len(answers),
        failures=Counter(outcome.failure.kind for outcome in failed if outcome.failure),
        first_failures=_first_messages(failed),
        prompt_tokens=spread(answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        completion_tokens=sum(answer.completion_tokens for answer in answers),
        events=sum(len(answer.events) for answer in answers),
        other_lengths=dict(sorted(lengths.items())),
        uncounted=sum(not answer.counted for answer in answers),
        reached=reached(whole, target.facts, ceilings) if isinstance(ceilings, Ceilings) else None,
        rounds=tuple(map(_round_figures, rounds)),
    )


def _round_figures(played: Round) -> RoundFigures:
    return RoundFigures(
        tokens_per_s=played.tokens_per_s,
        requests_per_s=played.requests_per_s,
        first_token_s=played.first_s,
        decode_tokens_per_s=played.decode_per_s,
        wall_s=played.wall_s,
        answers=len(played.answers),
        failed=len(played.outcomes) - len(played.answers),
        complete=played.complete,
    )


def _first_messages(failed: Sequence[RequestOutcome]) -> dict[str, str]:
    found: dict[str, str] = {}
    for outcome in failed:
        assert outcome.failure is not None
        found.setdefault(outcome.failure.kind, outcome.failure.message)
    return found


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
