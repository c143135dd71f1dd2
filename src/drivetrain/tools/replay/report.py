"""The results of replaying receipts, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drivetrain.core.receipt import Receipt
from drivetrain.tools.diff.compare import AnswerToken
from drivetrain.tools.diff.report import INDENT, place_text, token_text
from drivetrain.tools.replay.verdict import GOOD, NOT_REPLAYED, ChoiceVerdict, Replayed, Verdict, mean_logprob, worst

SHOWN = 20
"""Receipts that are shown in full. A file has them all."""

_COUNTED = tuple(Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedOn:
    """What replayed some receipts of one model and engine. `weights` is the digest of the weights here."""

    label: str
    model: str
    engine: str
    device: str
    dtype: str
    weights: str | None
    versions: Mapping[str, str]
    tolerance: float


@dataclass(frozen=True, slots=True)
class ReplayedGroup:
    """Receipts that were made alike, and were replayed on one worker; None if they could not be."""

    on: ReplayedOn | None
    results: tuple[Replayed, ...]

    @property
    def receipt(self) -> Receipt | None:
        """One of them."""
        return next((result.receipt for result in self.results if result.receipt is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """`complete` is False if an interrupt came before all were replayed."""

    version: str
    began: str
    num_top: int
    groups: tuple[ReplayedGroup, ...]
    complete: bool = True

    @property
    def results(self) -> list[Replayed]:
        return [result for group in self.groups for result in group.results]

    @property
    def verdict(self) -> Verdict:
        return worst(result.verdict for result in self.results)


# As text


def group_table(report: ReplayReport) -> tuple[list[str], list[list[str]]]:
    """Verdicts that nothing got are left out."""
    counted = [v for v in _COUNTED if v in GOOD or any(result.verdict is v for result in report.results)]
    head = ["model", "made by", "replayed on", "weights", "receipts", *counted, "mean logprob"]
    return head, [_row(group, counted) for group in report.groups]


def _row(group: ReplayedGroup, counted: Sequence[Verdict]) -> list[str]:
    receipt, on, mean = group.receipt, group.on, mean_logprob(group.results)
    counts = [str(sum(result.verdict is verdict for result in group.results)) for verdict in counted]
    return [
        receipt.model if receipt is not None else "–",
        f"{receipt.engine}, {receipt.dtype}" if receipt is not None else "–",
        f"{on.label}, {on.dtype}" if on is not None else "–",
        weights_text(receipt, on.weights) if receipt is not None and on is not None else "–",
        str(len(group.results)),
        *counts,
        "–" if mean is None else f"{mean:.3f}",
    ]


def weights_text(receipt: Receipt, here: str | None) -> str:
    if receipt.weights is None or here is None:
        return "not known"
    return "the same" if receipt.weights == here else "other"


def detail_lines(report: ReplayReport) -> list[str]:
    """Each receipt whose answer did not come again as it was, up to a number of them."""
    told = [result for result in report.results if result.verdict is not Verdict.IDENTICAL]
    lines = [line for result in told[:SHOWN] for line in ("", *_lines_of(result))]
    if len(told) > SHOWN:
        lines += ["", f"and {len(told) - SHOWN} more receipts; a JSON report has them all"]
    return lines


def _lines_of(result: Replayed) -> list[str]:
    name = result.where if result.receipt is None else f"{result.where} ({result.receipt.request_id})"
    if result.why:
        return [f"{result.verdict.upper()} {name}: {result.why}"]
    several = len(result.choices) > 1
    return [
        line
        for choice in result.choices
        if choice.verdict is not Verdict.IDENTICAL
        for line in _choice_lines(choice, f"{name}, choice {choice.index}" if several else name)
    ]


def _choice_lines(choice: ChoiceVerdict, name: str) -> list[str]:
    place = "" if choice.at is None else f" at token {choice.at}"
    head = f"{choice.verdict.upper()}{place}: {name}"
    if choice.parting is None:
        return [head, f"{INDENT}{choice.why}"]
    sides = (("recorded", choice.parting.first), ("again", choice.parting.second))
    lists = [f"{INDENT}{label:<8}  {_side_text(side)}" for label, side in sides]
    return [head, *lists, f"{INDENT}{choice.why}"]


def _side_text(side: AnswerToken | None) -> str:
    """The token that was taken, which need not be the likeliest, and the list."""
    if side is None:
        return place_text(side)
    known = "" if side.logprob is None else f" {side.logprob:.4f}"
    taken = f"{token_text(side.token_id, side.token)}{known}"
    return f"{taken}, of  {place_text(side)}" if side.top else taken


def summary_line(report: ReplayReport) -> str:
    counts = {verdict: sum(result.verdict is verdict for result in report.results) for verdict in _COUNTED}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"of {len(report.results)} receipts: {told}"


def exit_code(report: ReplayReport) -> int:
    """0: every answer came again, or within rounding; 2: some receipts were not replayed; 1: anything else."""
    verdicts = {result.verdict for result in report.results}
    return 2 if verdicts & NOT_REPLAYED else 0 if verdicts <= GOOD and report.complete else 1


# As data


def document(report: ReplayReport) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "drivetrain": report.version,
        "began": report.began,
        "complete": report.complete,
        "top": report.num_top,
        "counts": {verdict: sum(result.verdict is verdict for result in report.results) for verdict in _COUNTED},
        "groups": [_group_document(group) for group in report.groups],
    }


def _group_document(group: ReplayedGroup) -> dict[str, Any]:
    return {
        "replayed_on": None if group.on is None else asdict(group.on),
        "mean_logprob": mean_logprob(group.results),
        "receipts": [_result_document(result) for result in group.results],
    }


def _result_document(result: Replayed) -> dict[str, Any]:
    receipt = result.receipt
    about = {} if receipt is None else {
        "request_id": receipt.request_id, "model": receipt.model, "engine": receipt.engine, "digest": receipt.digest,
    }  # fmt: skip
    return {"where": result.where, **about, "verdict": result.verdict, "why": result.why} | {
        "choices": [asdict(choice) for choice in result.choices]
    }
