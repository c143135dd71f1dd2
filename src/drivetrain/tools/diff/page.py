"""The results of a comparison as an HTML page: for each prompt where two engines diverge, and what each rated there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from drivetrain.tools.diff.compare import Agreement, AnswerToken, Comparison, RecordedAnswer
from drivetrain.tools.diff.report import (
    DiffReport,
    SidePair,
    counts_line,
    figure_lines,
    note_lines,
    side_table,
    token_text,
    why,
)
from drivetrain.tools.reports import parts
from drivetrain.tools.reports.histograms import Distribution, distribution
from drivetrain.tools.reports.markup import Content, Html
from drivetrain.tools.reports.meters import meter, stack
from drivetrain.tools.reports.page import Head, page_of
from drivetrain.tools.reports.parts import Tone

MARKS = {
    Agreement.AGREES: ("agrees", Tone.GOOD),
    Agreement.TIE: ("tie", Tone.PLAIN),
    Agreement.PARTS: ("diverges", Tone.BAD),
    Agreement.OTHER_PROMPT: ("other tokens", Tone.BAD),
}
SHOWN_PROMPTS = 200
SHOWN_CHARS, SHOWN_TOKEN = 100, 40


def page(report: DiffReport, origin: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """`origin` is how the report came about; `data` is the report as plain data."""
    pairs, asked = report.pairs(), report.questions
    same = all(pair.summary.is_same for pair in pairs)
    mark, tone = ("same", Tone.GOOD) if same else ("different", Tone.BAD)
    if not report.complete:
        mark, tone = "not completed", Tone.WARN
    form = "as chat messages" if asked.chat else "as they are"
    facts: list[tuple[str, Content]] = [
        ("Model", ", ".join(dict.fromkeys(side.model for side in report.sides))),
        ("Prompts", f"{len(asked.prompts)}, {form}; greedy, at most {asked.num_tokens} tokens each"),
        ("Tie", f"within {report.tolerance:g} of the first engine's own logprob"),
        ("Began", parts.moment(report.began)),
    ]
    head = Head(
        tool="drivetrain diff",
        title=" and ".join(side.label for side in report.sides),
        mark=mark,
        tone=tone,
        verdict=". ".join(f"{pair.first.label} and {pair.second.label}: {counts_line(pair.summary)}" for pair in pairs),
        facts=facts,
        origin=origin,
    )
    return page_of(head, _sections(report, pairs), data)


def _sections(report: DiffReport, pairs: list[SidePair]) -> Iterator[Html]:
    yield parts.section(
        "Engines", parts.table("What was compared", *side_table(report), wide=True), parts.bullets(note_lines(report))
    )
    spread = distribution(
        Distribution(
            title="How far apart the logprobs of common tokens are",
            about="differences above 0, how often each occurred; the line is the median",
            axis="difference in logprob",
            labels=[f"{pair.first.label} and {pair.second.label}" for pair in pairs],
            names=["difference"],
            values=[[[value for one in pair.comparisons for value in one.differences if value > 0]] for pair in pairs],
        )
    )
    if spread is not None:
        yield parts.section("Logprobs", spread)
    for number, pair in enumerate(pairs):
        yield _pair(report, pair, number)


def _pair(report: DiffReport, pair: SidePair, number: int) -> Html:
    found_as = [(outcome, count) for outcome in Agreement if (count := pair.summary.counts[outcome])]
    counts = [(str(MARKS[outcome][1]), count, MARKS[outcome][0]) for outcome, count in found_as]
    found = zip(report.questions.prompts, pair.first.answers, pair.second.answers, pair.comparisons, strict=True)
    in_order = sorted(found, key=lambda one: one[3].outcome is Agreement.AGREES and not one[3].parts_apart)
    rest = len(in_order) - SHOWN_PROMPTS
    return parts.section(
        f"{pair.first.label} and {pair.second.label}",
        stack(counts, counts_line(pair.summary)),
        parts.badges(parts.badge(f"{MARKS[outcome][0]}: {count:,}", MARKS[outcome][1]) for outcome, count in found_as),
        parts.bullets(figure_lines(pair, report)),
        *[_prompt(*one, pair, report) for one in islice(in_order, SHOWN_PROMPTS)],
        parts.note(f"… and {rest:,} more prompts; the data of this report have all.") if rest > 0 else None,
        anchor=f"pair-{number}",
    )


def _prompt(
    prompt: str, first: RecordedAnswer, second: RecordedAnswer, found: Comparison, pair: SidePair, report: DiffReport
) -> Html:
    mark, tone = MARKS[found.outcome]
    if found.outcome is Agreement.AGREES and found.parts_apart:
        mark, tone = "read differently", Tone.WARN
    shown = prompt if len(prompt) <= SHOWN_CHARS else f"{prompt[: SHOWN_CHARS - 1]}…"
    summary = [parts.badge(mark, tone), parts.code(shown), parts.span(_equal(found), "note")]
    texts = [parts.pre(prompt, "Prompt")]
    if found.num_common:
        texts.append(parts.pre(_common(first, found), f"Equal on both sides: {_equal(found)}"))
    if found.outcome is Agreement.OTHER_PROMPT:
        sides = ((pair.first.label, first), (pair.second.label, second))
        texts += [parts.pre(_ids(answer), f"{label}: {len(answer.prompt_ids)} ids") for label, answer in sides]
    return parts.fold(
        summary, parts.beside(*texts), *_parting(found, pair, report), *_apart(first, second, found, pair)
    )


def _equal(found: Comparison) -> str:
    if found.outcome is Agreement.OTHER_PROMPT:
        return "the two engines tokenize it differently"
    return "1 equal token" if found.num_common == 1 else f"{found.num_common} equal tokens"


def _ids(answer: RecordedAnswer) -> str:
    return " ".join(map(str, answer.prompt_ids))


def _common(answer: RecordedAnswer, found: Comparison) -> str:
    return "".join(place.token for place in answer.places[: found.num_common])


def _parting(found: Comparison, pair: SidePair, report: DiffReport) -> Iterator[Html]:
    if found.parting is None:
        return
    one, two = found.parting.first, found.parting.second
    yield parts.paragraph(f"Here {why(found.parting, pair.first.label, report.tolerance)}.")
    yield parts.beside(
        likeliest(pair.first.label, one, two, "side-0"), likeliest(pair.second.label, two, one, "side-1")
    )


def likeliest(label: str, place: AnswerToken | None, other: AnswerToken | None, kind: str) -> Html:
    """What one side rated likeliest where they diverge: bars of probability."""
    if place is None:
        return parts.table(f"{label} ended before", ["token"], [["(ended)"]])
    rows: list[list[Content]] = [
        [
            [_token(one.token_id, one.token), _chosen(one.token_id, place, other)],
            meter(math.exp(min(0.0, one.logprob)), kind, f"{math.exp(min(0.0, one.logprob)):.1%}"),
            f"{math.exp(min(0.0, one.logprob)):.1%}",
            f"{one.logprob:.4f}",
        ]
        for one in place.top
    ]
    if not rows:
        rows = [[_token(place.token_id, place.token), "(no logprobs)", "", ""]]
    head = ["token", "likeliest", "probability", "logprob"]
    return parts.table(f"{label}: what it rated likeliest there", head, rows, numbers={2, 3}, wide=True)


def _token(token_id: int, token: str) -> Html:
    """Short, for a token may be as long as its server likes."""
    return parts.code(token_text(token_id, token if len(token) <= SHOWN_TOKEN else f"{token[: SHOWN_TOKEN - 1]}…"))


def _chosen(token_id: int, place: AnswerToken, other: AnswerToken | None) -> Content:
    if token_id == place.token_id:
        return parts.span(" taken", "note")
    return parts.span(" taken by the other", "note") if other is not None and token_id == other.token_id else None


def _apart(first: RecordedAnswer, second: RecordedAnswer, found: Comparison, pair: SidePair) -> Iterator[Html]:
    """What one reads as reasoning and the other as content, for instance."""
    if first.is_plain and second.is_plain:
        return
    for part in found.parts_apart:
        texts = [_part_text(getattr(answer.parts, part)) for answer in (first, second)]
        labels = [f"{side.label}: {part}" for side in (pair.first, pair.second)]
        yield parts.beside(*[parts.pre(text, label) for text, label in zip(texts, labels, strict=True)])


def _part_text(part: Any) -> str:
    return part if isinstance(part, str) else "\n".join(f"{name}({arguments})" for name, arguments in part)
