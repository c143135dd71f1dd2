"""What rounds come to, and how it is told: ratios, remarks, tables, Markdown and the picture."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from bench_rigs import failed, outcome, played, workload

from drivetrain.core.engine import WeightsFormat
from drivetrain.tools.bench import tables
from drivetrain.tools.bench.ceilings import Ceilings, NotMeasured, reached
from drivetrain.tools.bench.chart import chart
from drivetrain.tools.bench.outcome import Round
from drivetrain.tools.bench.report import BenchReport, NamedTarget, compare, make_level, notes
from drivetrain.tools.bench.session import Played
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.weights import Weights
from drivetrain.tools.bench.workload import Closed, Level, arrivals

CEILINGS = Ceilings(
    memory_gb_per_s=20.0, product_gflop_per_s=100.0, measured_with="torch 9", device="CPU", dtype="float32"
)
WEIGHTS = Weights(100_000_000, 60_000_000, WeightsFormat.GGUF)
NATIVE = TargetFacts(kind="in this process", model="m", engine="native", device="cpu", dtype="float32", weights=WEIGHTS)
SVG = "{http://www.w3.org/2000/svg}"


def steady(rate: float, first_s: float = 0.5, tokens: int = 4, streams: int = 1) -> Round:
    """Streams that decode at so many tokens a second, each on its own."""
    times = [first_s + i / rate for i in range(tokens)]
    return played(*(outcome(0.0, times) for _ in range(streams)), wall_s=times[-1])


def report_of(
    *rounds: list[Round],
    facts: TargetFacts = NATIVE,
    ceilings: Any = CEILINGS,
    level: Level | None = None,
    **changes: Any,
) -> BenchReport:
    names = ["ours", "theirs"][: len(rounds)]
    targets = tuple(NamedTarget(label=name, facts=facts) for name in names)
    work = workload(**changes)
    made = make_level(Played(level or rounds[0][0].level, rounds), targets, ceilings, work)
    machine = {
        "cpu": {"model": "a CPU", "usable": 2},
        "memory": {"total_bytes": 24_000_000_000},
        "versions": {"python": "3.11"},
        "commit": "abc",
    }
    return BenchReport(
        command="drivetrain bench m",
        began="2026-01-01",
        machine=machine,
        workload=work,
        targets=targets,
        ceilings=ceilings,
        levels=(made,),
        notes=tuple(notes([made], targets, work)),
        complete=True,
    )


def test_ratios_are_of_pairs_and_not_of_medians() -> None:
    """The machine slows down by half between the pairs; the ratio does not see it."""
    ours = [steady(100, first_s=0.1, tokens=11), steady(50, first_s=0.2, tokens=11)]
    theirs = [steady(200, first_s=0.05, tokens=11), steady(100, first_s=0.1, tokens=11)]
    found = compare(ours, theirs)
    assert found is not None
    assert found.pairs == 2
    assert found.first_token_ratio is not None
    assert found.first_token_later_s is not None
    ratio, later = found.first_token_ratio, found.first_token_later_s
    assert [found.throughput_ratio.low, found.throughput_ratio.high] == pytest.approx([0.5, 0.5])
    assert [ratio.low, ratio.high] == pytest.approx([2.0, 2.0])
    assert [later.low, later.median, later.high] == pytest.approx([0.05, 0.075, 0.1])


def test_a_round_that_failed_or_was_interrupted_makes_no_pair() -> None:
    good, part = steady(100), played(outcome(0.0, [0.1]), complete=False)
    assert compare([good, good], [played(failed()), part]) is None
    found = compare([good, good, good], [played(failed()), good])
    assert found is not None
    assert found.pairs == 1


def test_one_stream_is_held_against_memory_and_many_against_products() -> None:
    one = reached([steady(25.0), steady(10.0), steady(50.0)], NATIVE, CEILINGS)
    assert one is not None
    assert one.tokens_per_s == pytest.approx(25.0)
    assert one.memory_share == pytest.approx(25 * 400e6 / 20e9)  # 4 bytes a parameter, whatever the file has
    assert one.product_share is None
    many = reached([steady(25.0, streams=8)], NATIVE, CEILINGS)
    assert many is not None
    assert many.memory_share is None
    assert many.product_share == pytest.approx(8 * 25 * 2 * 100e6 / 100e9)


def test_what_is_not_known_has_no_share() -> None:
    assert reached([steady(25.0)], TargetFacts(kind="over HTTP", model="m"), CEILINGS) is None
    assert reached([played(failed())], NATIVE, CEILINGS) is None


@pytest.mark.parametrize(
    ("engine", "dtype", "num_bytes"),
    [("llamacpp", "Q4_1", 60_000_000), ("llamacpp", "F16", 200_000_000), ("native", "bfloat16", 200_000_000),
     ("native", "int8", 100_000_000), ("transformers", "strange", None), (None, None, None)],
)  # fmt: skip
def test_bytes_of_a_token(engine: str | None, dtype: str | None, num_bytes: int | None) -> None:
    assert WEIGHTS.bytes_as(engine, dtype) == num_bytes


def test_what_must_not_be_overlooked_is_said() -> None:
    short = outcome(0.0, [0.1, 0.2], tokens=2)
    packed = outcome(0.0, [0.1], tokens=4)
    uncounted = outcome(0.0, [0.1] * 4, counted=False)
    rounds = [played(short, packed, uncounted, failed("http 429", "slow down"), level=Closed(4))]
    facts = TargetFacts(kind="over HTTP", model="m", max_concurrency=2)
    said = report_of(rounds, facts=facts, ceilings=NotMeasured("no")).notes
    assert said == (
        "4 streams, ours: 1 of 4 requests failed: http 429: slow down.",
        "4 streams, ours: 1 of 3 answers had 2 tokens instead of 4.",
        "4 streams, ours: 1 answers came without usage, so each event counts as one token.",
        "4 streams, ours: events carried 1.4 tokens on average, so times between events are not times between tokens.",
        "4 streams, ours: it runs 2 requests at once (the others wait); see the settings slots and max_running.",
    )


def test_nothing_is_said_of_a_clean_run() -> None:
    assert report_of([steady(100)]).notes == ()


def test_an_interrupted_round_counts_only_alone() -> None:
    part = played(outcome(0.0, [0.1] * 4), wall_s=2.0, complete=False, level=Closed(1))
    (figures,) = report_of([part]).levels[0].sides
    assert figures.tokens_per_s is not None
    assert figures.tokens_per_s.median == 2.0
    report = report_of([steady(100), part])
    assert report.levels[0].sides[0].answers == 1
    assert "interrupted" in report.notes[0]


def test_tables() -> None:
    report = report_of([steady(100), steady(50)], [steady(200), steady(100)])
    head, rows = tables.figures_table(report)
    assert head[:3] == ["load", "target", "tokens/s"]
    assert [row[:2] for row in rows] == [["1 stream", "ours"], ["1 stream", "theirs"]]
    assert rows[0][4] == "500 / 500 / 500"
    _, against = tables.against_table(report)
    assert against[0][:3] == ["1 stream", "2", "0.959 (0.946..0.972)"]
    text = " ".join(tables.sentences(report))
    assert "memory read 20.0 GB/s, float32 matrix product 100 GFLOP/s" in text
    assert "1 stream, ours: decoding at 100.0 tokens/s uses 200% of the memory bandwidth." in text


def test_a_table_of_nothing_answered() -> None:
    _, rows = tables.figures_table(report_of([played(failed())]))
    assert rows[0][2:] == ["0 (0..0)", "0", "–", "–", "–", "1"]


def test_markdown() -> None:
    text = tables.markdown(report_of([steady(100)], [steady(200)]))
    assert text.startswith("# ours against theirs\n\n`drivetrain bench m`\n\n2026-01-01, a CPU, 2 cores, 24.0 GB")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[1] == "| --- | --- | --- | --- | --- | --- | --- | --- |"


@pytest.mark.parametrize("sides", [1, 2])
def test_the_picture_has_a_bar_a_target_and_level(sides: int) -> None:
    report = report_of(*[[steady(100), steady(50)]] * sides)
    root = ElementTree.fromstring(chart(report))
    bars = [title.text for title in root.iter(f"{SVG}title")]
    assert len(bars) == 2 * sides  # two charts
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"1", "concurrent streams", "Tokens per second", "First token, ms"} <= set(texts)
    assert ("theirs" in texts) == (sides == 2)


def test_a_hostile_name_does_not_break_the_picture() -> None:
    facts = TargetFacts(kind="over HTTP", model='<script>"&\x00\x1b')
    text = chart(report_of([played(failed())], facts=facts, level=arrivals(0.5, 1, count=1)))
    texts = [found.text or "" for found in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert any(found.startswith('<script>"&\\x00\\x1b: prompts') for found in texts)
    assert {"none", "0.5", "requests per second"} <= set(texts)


def test_numbers_keep_three_digits() -> None:
    report = report_of([steady(100, first_s=0.0001234)])
    _, rows = tables.figures_table(report)
    assert re.fullmatch(r"0\.123 / 0\.123 / 0\.123", rows[0][4])
