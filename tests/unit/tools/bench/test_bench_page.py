"""The HTML report of a measurement: its one line, its charts and its tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drivetrain.tools.bench.chart import between_times, first_token, throughput
from drivetrain.tools.bench.figures import thinned
from drivetrain.tools.reports.charts import Point
from recorded_reports import bench_report, bench_text, hostile_bench
from written_page import HOSTILE, WrittenPage


def written(*labels: str, **changes: object) -> WrittenPage:
    found = WrittenPage(bench_text(bench_report(*labels, **changes)))  # type: ignore[arg-type]
    found.check()
    return found


def test_one_side() -> None:
    page = written("native")
    root = page.root
    best = max(level["sides"][0]["tokens_per_s"]["median"] for level in page.data["levels"])
    assert root.one("p", "verdict").text.startswith(f"measured{best:.0f} tokens per second with 16 streams, the first")
    assert [table.one("caption").text for table in root.all("table")] == [
        "Each side at each load",
        "Each measured round",
    ]
    assert len(root.one("details").all("tr")) == 1 + 3 * 3
    assert [figure.one("figcaption").parts[0] for figure in root.all("figure")] == [
        "Tokens per second", "First token, ms", "First token, all answers", "Between events, all answers",
    ]  # fmt: skip
    assert len(root.all("figure")[0].all("circle")) == 3
    assert root.one("dl", "tiles").text.endswith("Failed0of 126 requests")
    facts = {row.one("dt").text: row.one("dd").text for row in root.one("dl", "facts").all("div")}
    assert facts["Command"] == "drivetrain bench m --streams 1,4,16"
    assert facts["Load"] == "prompts of about 32 tokens, 24 new tokens, greedy, seed 7"
    assert {"Model", "Began", "Machine", "Versions"} <= facts.keys()


def test_two_sides_are_compared() -> None:
    page = written("native", "llamacpp", streams=(1, 16))
    root, levels = page.root, page.data["levels"]
    ratios = [level["against"]["throughput_ratio"]["median"] for level in levels]
    assert root.one("p", "verdict").text == (
        f"comparedTokens per second of native over llamacpp: {ratios[0]:.2f} times with 1 stream, "
        f"{ratios[1]:.2f} times with 16 streams."
    )
    assert len(root.one("dl", "tiles").all("div")) == 2
    assert "The first side over the second, by pairs of rounds" in [node.text for node in root.all("caption")]
    assert not root.one("main").all("circle")  # two levels are bars


def test_failures_and_an_interrupt_are_said() -> None:
    failed = written("native", failures=1).root.one("p", "verdict").text
    assert failed.startswith("with failures")
    assert failed.endswith(" 9 requests failed.")
    cut = WrittenPage(bench_text(replace(bench_report("native"), complete=False))).root.one("p", "verdict").text
    assert cut.startswith("not completed")
    assert cut.endswith(" The run was not completed.")


def test_nothing_answered() -> None:
    page = written("native", "llamacpp", failures=1, streams=(1,))
    assert "Nothing" not in page.root.text
    nothing = written("native", "other", failures=99).root
    assert "cannot be compared: no pair of rounds was answered by both" in nothing.one("p", "verdict").text
    assert "Nothing was answered." in written("native", failures=99).root.one("p", "verdict").text


def test_what_others_named_is_text() -> None:
    page = WrittenPage(bench_text(hostile_bench()))
    page.check()
    assert "<script>alert(1)</script>" in page.root.one("h1").text
    assert page.data["command"] == HOSTILE


def test_the_points_are_the_reports_figures() -> None:
    report = bench_report("native", streams=(1,))
    side = report.levels[0].sides[0]
    assert side.tokens_per_s is not None
    assert throughput(report).series[0].points == [
        Point(side.tokens_per_s.median, side.tokens_per_s.low, side.tokens_per_s.high)
    ]
    (point,) = first_token(report).series[0].points
    assert point is not None
    assert side.first_token_s.p50 is not None
    assert point.value == pytest.approx(1000 * side.first_token_s.p50)
    assert between_times(report).values[0][0] == pytest.approx([1000 * value for value in side.between_events_values_s])
    assert len(side.between_events_values_s) == 3 * 2 * 23


def test_of_many_values_the_lowest_and_the_highest_stay() -> None:
    values = thinned(float(i) for i in range(100_000, 0, -1))
    assert len(values) == 200
    assert (values[0], values[-1]) == (1.0, 100_000.0)
    assert list(values) == sorted(values)
    assert thinned([3.0, 1.0]) == (1.0, 3.0)
    assert thinned([]) == ()
