"""The results of a comparison, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drivetrain.core.engine import WeightsFormat
from drivetrain.tools.diff.compare import (
    PARTS,
    Agreement,
    AnswerToken,
    Comparison,
    Parting,
    RecordedAnswer,
    Summary,
    compare,
    summarize,
)
from drivetrain.tools.diff.record import Questions

INDENT = "    "
SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One engine and its answers. `weights` is the format of the files, `dtype` what the engine made of them.

    `settings` are those that differ from the default.
    """

    label: str
    engine: str
    model: str
    weights: WeightsFormat
    dtype: str
    device: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    answer_form: str
    answers: tuple[RecordedAnswer, ...]

    @property
    def form(self) -> str:
        """Two sides can only have the same numbers if this is the same."""
        quantize = self.settings.get("quantize", "none")
        held = self.dtype if self.weights == WeightsFormat.NONE else f"{self.weights} as {self.dtype}"
        return f"{held}{f', in {quantize}' if quantize != 'none' else ''}"


@dataclass(frozen=True, slots=True)
class SidePair:
    """The first side and another one, with one comparison per prompt."""

    first: ComparedSide
    second: ComparedSide
    comparisons: tuple[Comparison, ...]
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffReport:
    """`complete` is False if an engine failed, or an interrupt came before all were asked."""

    version: str
    began: str
    questions: Questions
    tolerance: float
    sides: tuple[ComparedSide, ...]
    complete: bool = True

    def pairs(self) -> list[SidePair]:
        return [_pair(self.sides[0], other, self.tolerance) for other in self.sides[1:]]


def _pair(first: ComparedSide, second: ComparedSide, tolerance: float) -> SidePair:
    answers = zip(first.answers, second.answers, strict=True)
    comparisons = tuple(compare(one, other, tolerance=tolerance) for one, other in answers)
    return SidePair(first, second, comparisons, summarize(comparisons))


# As text


def side_table(report: DiffReport) -> tuple[list[str], list[list[str]]]:
    """Of a prompt that is not a chat the answer is all content, whatever the form."""
    head, rows = ["side", "engine", "model", "weights", "device"], []
    for side in report.sides:
        row = [side.label, side.engine, side.model, side.form, side.device]
        rows.append([*row, side.answer_form] if report.questions.chat else row)
    return ([*head, "answer form"] if report.questions.chat else head), rows


def note_lines(report: DiffReport) -> list[str]:
    """The notes of the engines for the user."""
    return [f"{side.label}: {note}" for side in report.sides for note in side.notes]


def lines_of(pair: SidePair, report: DiffReport) -> list[str]:
    """The summary of a pair, then each prompt that diverged."""
    names = f"{pair.first.label} and {pair.second.label}"
    found = ["", f"{names}: {counts_line(pair.summary)}", *(f"{INDENT}{line}" for line in figure_lines(pair, report))]
    answers = zip(pair.first.answers, pair.second.answers, pair.comparisons, strict=True)
    for prompt, (answer, other, comparison) in zip(report.questions.prompts, answers, strict=True):
        if comparison.outcome is not Agreement.AGREES or comparison.parts_apart:
            common = "".join(place.token for place in answer.places[: comparison.num_common])
            found += ["", *_prompt_lines(prompt, common, comparison, pair, report.tolerance)]
            if comparison.parts_apart and not (answer.is_plain and other.is_plain):
                found.append(f"{INDENT}what differs: {', '.join(comparison.parts_apart)}")
    return found


def counts_line(summary: Summary) -> str:
    verbs = {
        Agreement.AGREES: "agree completely",
        Agreement.TIE: "diverge in a tie",
        Agreement.PARTS: "diverge",
        Agreement.OTHER_PROMPT: "are tokenized differently",
    }
    counts = [f"{summary.counts[o]} {verbs[o]}" for o in Agreement if summary.counts[o] or o is Agreement.AGREES]
    return f"of {summary.num_prompts} prompts {', '.join(counts)}"


def figure_lines(pair: SidePair, report: DiffReport) -> list[str]:
    summary, lines = pair.summary, []
    if summary.fewest_until_parting is not None:
        until = f"at least {summary.fewest_until_parting}, median {summary.median_until_parting:g}"
        lines.append(f"tokens before they diverge: {until} (of {report.questions.num_tokens})")
        rank = summary.worst_rank
        within = f"among the other's top {rank}" if rank else "not always in the other's list"
        lines.append(f"where they diverge, each side's token is {within}")
    if summary.num_compared:
        apart = f"at most {summary.largest_difference:.2g}, on average {summary.mean_difference:.2g}"
        lines.append(f"logprobs of the {summary.num_compared} common tokens differ by {apart}")
    else:
        lines.append("logprobs: none to compare")
    if pair.first.form != pair.second.form:
        lines.append(
            f"the weights differ ({pair.first.form}; {pair.second.form}), which explains part of the difference"
        )
    return [*lines, *_parts_lines(pair, chat=report.questions.chat)]


def _parts_lines(pair: SidePair, *, chat: bool) -> list[str]:
    lines, sides = [], (pair.first, pair.second)
    if not all(answer.is_plain for side in sides for answer in side.answers):
        for part in PARTS:
            one, two = (sum(bool(getattr(answer.parts, part)) for answer in side.answers) for side in sides)
            apart = sum(part in comparison.parts_apart for comparison in pair.comparisons)
            if one or two:
                lines.append(f"{part}: in {one} and {two} answers, {apart} differ")
    forms = [side.answer_form for side in sides]
    if chat and forms[0] != forms[1]:
        lines.append(f"the answer forms differ ({'; '.join(forms)}), so the same text may be read as different parts")
    return lines


def _prompt_lines(prompt: str, common: str, comparison: Comparison, pair: SidePair, tolerance: float) -> list[str]:
    parting = comparison.parting
    if comparison.outcome is Agreement.AGREES:
        return [f"READ DIFFERENTLY {_head(prompt)}: the tokens are equal"]
    if parting is None:
        return [f"OTHER TOKENS {_head(prompt)}: the two engines tokenize it differently"]
    shared = f": {_tail(common)}" if common else ""
    how = "TIE" if comparison.outcome is Agreement.TIE else "DIVERGES"
    head = f"{how} {_head(prompt)} after {comparison.num_common} equal tokens{shared}"
    labels = (pair.first.label, pair.second.label)
    width = max(map(len, labels))
    sides = zip(labels, (parting.first, parting.second), strict=True)
    lists = [f"{INDENT}{label:<{width}}  {place_text(place)}" for label, place in sides]
    return [head, *lists, f"{INDENT}{why(parting, pair.first.label, tolerance)}"]


def _head(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…")


def _tail(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else "…" + text[1 - SHOWN_CHARS :])


def place_text(place: AnswerToken | None) -> str:
    """A token with what the engine rated likeliest there."""
    if place is None:
        return "(ended)"
    if not place.top:
        return f"{token_text(place.token_id, place.token)}  (no logprobs)"
    return "  ".join(f"{token_text(one.token_id, one.token)} {one.logprob:.4f}" for one in place.top)


def token_text(token_id: int, token: str) -> str:
    return f"{token!r}#{token_id}" if token else f"#{token_id}"


def why(parting: Parting, first: str, tolerance: float) -> str:
    if parting.first is None or parting.second is None:
        return "one answer ends where the other continues"
    if parting.gap is None:
        return f"the other's token is not in the list of {first}"
    where = "within" if parting.gap <= tolerance else "beyond"
    return f"{first} rates the other's token {parting.gap:.2g} below its own, {where} the tolerance of {tolerance:g}"


# As data


def document(report: DiffReport) -> dict[str, Any]:
    """Everything, the answers included, as plain data."""
    return {
        "drivetrain": report.version,
        "began": report.began,
        "complete": report.complete,
        **asdict(report.questions),
        "tolerance": report.tolerance,
        "sides": [asdict(side) for side in report.sides],
        "pairs": [_pair_document(pair, report.questions.prompts) for pair in report.pairs()],
    }


def _pair_document(pair: SidePair, prompts: Sequence[str]) -> dict[str, Any]:
    compared = zip(prompts, pair.comparisons, strict=True)
    return {
        "first": pair.first.label,
        "second": pair.second.label,
        "same": pair.summary.is_same,
        "summary": asdict(pair.summary),
        "prompts": [{"prompt": prompt, **_comparison_document(comparison)} for prompt, comparison in compared],
    }


def _comparison_document(comparison: Comparison) -> dict[str, Any]:
    found = asdict(comparison)
    if comparison.parting is not None:
        found["parting"] |= {"gap": comparison.parting.gap, "worst_rank": comparison.parting.worst_rank}
    return found
