"""Charts: scales with round marks, shapes inside their field, and what is said of them without eyes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from drivetrain.tools.reports import charts
from drivetrain.tools.reports.axes import between, from_zero, short, ticks
from drivetrain.tools.reports.charts import HEIGHT, Chart, Point, Series
from drivetrain.tools.reports.histograms import Distribution, distribution
from drivetrain.tools.reports.markup import Html
from drivetrain.tools.reports.meters import meter, stack
from drivetrain.tools.reports.picture import picture
from written_page import HOSTILE, Node, WrittenPage


def chart(*series: Series, labels: tuple[str, ...] = ("1", "4")) -> Chart:
    return Chart(title="Speed", about="tokens per second", axis="streams", labels=labels, series=series)


OURS = Series("ours", [Point(10.0, 8.0, 12.0), Point(40.0, 40.0, 40.0)])
THEIRS = Series("theirs", [None, Point(0.0, 0.0, 0.0)])


def read(made: Html | None) -> Node:
    assert made is not None
    return WrittenPage(str(made)).root.one("figure")


def percent(node: Node, *names: str) -> list[float]:
    return [float(node.attributes.get(name, "0%").removesuffix("%")) for name in names]


@pytest.mark.parametrize(
    ("highest", "marks"),
    [(0, [0, 1]), (1, [0, 0.5, 1]), (56.5, [0, 20, 40, 60]), (4000, [0, 1000, 2000, 3000, 4000]),
     (float("inf"), [0, 1]), (float("nan"), [0, 1]), (1e-7, [0, 5e-8, 1e-7])],
)  # fmt: skip
def test_marks_are_round_and_reach_the_highest(highest: float, marks: list[float]) -> None:
    assert ticks(highest) == pytest.approx(marks)


def test_far_values_get_a_scale_of_powers() -> None:
    near, far = between(2.0, 8.0), between(0.1, 2000.0)
    assert (near.log, near.low) == (False, 0.0)
    assert far.log
    assert far.marks == pytest.approx((0.1, 1, 10, 100, 1000))
    assert far.at(0.1) < far.at(1) < far.at(2000) <= 100
    assert far.at(0.0) == far.at(-5.0) == 0.0
    assert from_zero(60).at(30) == pytest.approx(50)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (12.34, "12.3"), (1234.5, "1,234"), (123456, "123k"), (1e9, "1e+09")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("draw", [charts.bars, charts.lines])
def test_shapes_stay_in_their_field(draw: object) -> None:
    figure = read(draw(chart(OURS, THEIRS)))  # type: ignore[operator]
    (field,) = [svg for svg in figure.all("svg") if "x" in svg.attributes]
    for rect in field.all("rect"):
        left, wide = percent(rect, "x", "width")
        assert 0 <= left <= left + wide <= 100
        assert (
            0 <= float(rect.attributes["y"]) <= float(rect.attributes["y"]) + float(rect.attributes["height"]) <= HEIGHT
        )
    for line in field.all("line"):
        assert all(0 <= float(line.attributes[name]) <= HEIGHT for name in ("y1", "y2"))
    assert figure.all("svg")[0].attributes["aria-label"] == (
        "Speed. tokens per second; ours, 1: 10; ours, 4: 40; theirs, 1: none; theirs, 4: 0"
    )


def test_bars() -> None:
    figure = read(charts.bars(chart(OURS, THEIRS)))
    tips = [rect.one("title").text for rect in figure.all("rect") if rect.all("title")]
    assert tips == ["ours, 1: 10 (8 to 12)", "ours, 4: 40", "theirs, 4: 0"]
    texts = [text.text for text in figure.all("text")]
    assert {"ours", "theirs", "none", "streams", "1", "4", "40"} <= set(texts)
    assert len(figure.all("line", "reach")) == 1
    assert figure.one("figcaption").text == "Speedtokens per second"


def test_lines_are_broken_where_nothing_was_measured() -> None:
    broken = Series("ours", [Point(1.0, 1.0, 1.0), None, Point(3.0, 2.0, 4.0), Point(4.0, 4.0, 4.0)])
    figure = read(charts.lines(chart(broken, labels=("1", "2", "3", "4"))))
    assert len(figure.all("circle")) == 3
    assert len([line for line in figure.all("line", "side-0") if "thin" not in line.attributes["class"]]) == 1
    assert "ours" not in [text.text for text in figure.all("text")]  # one side needs no legend


def test_a_chart_of_nothing() -> None:
    for empty in (chart(), chart(Series("ours", []), labels=()), chart(Series("ours", [None, None]))):
        assert read(charts.bars(empty)).all("svg")
        assert read(charts.lines(empty)).all("svg")
    shown = Distribution(title="T", about="", axis="ms", labels=["1"], names=["a"], values=[[[]]])
    assert distribution(shown) is None


def test_many_labels_do_not_run_into_each_other() -> None:
    labels = tuple(str(100 + i) for i in range(60))
    figure = read(charts.bars(chart(Series("a", [Point(1.0, 1.0, 1.0)] * 60), labels=labels)))
    assert len([text for text in figure.all("text") if text.text in labels]) == 12
    assert len(figure.all("rect")) == 60


def test_a_distribution_counts_each_value_once() -> None:
    values = [[[1.0, 1.0, 2.0, 500.0], [3.0]], [[], [7.0, 0.0]]]
    figure = read(
        distribution(
            Distribution(title="T", about="a", axis="ms", labels=["one", "two"], names=["x", "y"], values=values)
        )
    )
    ours, theirs = figure.all("rect", "side-0"), figure.all("rect", "side-1")
    assert (len(ours), len(theirs)) == (1 + 3, 1 + 3)  # one of each is the legend's
    for rect in figure.all("rect"):
        left, wide = percent(rect, "x", "width") if "%" in rect.attributes["width"] else (0, 0)
        assert 0 <= left <= left + wide <= 100
    label = figure.all("svg")[0].attributes["aria-label"]
    assert label == "T. ms: one, x: median 1.5; one, y: median 3; two, y: median 3.5"
    assert len(figure.all("line", "reach")) == 3


@pytest.mark.parametrize(
    ("values", "median"), [([1.0, 9.0], 5.0), ([1.0, 2.0, 9.0], 2.0), ([3.0] * 5, 3.0), ([8.0, 1.0, 2.0, 4.0], 3.0)]
)
def test_the_line_of_the_median_is_where_it_is(values: list[float], median: float) -> None:
    shown = Distribution(title="T", about="a", axis="ms", labels=["one"], names=["x"], values=[[values]])
    figure = read(distribution(shown))
    (line,) = figure.all("line", "reach")
    assert percent(line, "x1", "x2") == pytest.approx([2 + 0.96 * between(min(values), max(values)).at(median)] * 2)
    if median in values:  # the bar that holds it is around the line
        held = [(x, x + width) for x, width in (percent(bar, "x", "width") for bar in figure.all("rect", "side-0"))]
        assert any(x - 0.15 <= percent(line, "x1")[0] <= end + 0.15 for x, end in held)


def test_far_lower_values_do_not_squeeze_the_others() -> None:
    values = [[[0.0001, *[float(i) for i in range(50, 100)]]]]
    shown = Distribution(title="T", about="a", axis="ms", labels=["one"], names=["x"], values=values)
    rects = read(distribution(shown)).all("rect", "side-0")
    assert len(rects) > 5
    assert percent(rects[0], "x") == pytest.approx([2], abs=0.2)


def test_one_bar_of_parts_and_of_a_share() -> None:
    page = WrittenPage(str(stack([("good", 3, "pass"), ("bad", 0, "fail"), ("warn", 1, "other")], "said")))
    rects = page.root.all("rect")
    assert [percent(rect, "x", "width") for rect in rects] == [[0, 75], [75, 25]]
    assert page.root.one("svg").attributes["aria-label"] == "said"
    assert not WrittenPage(str(stack([], "said"))).root.all("rect")
    for share, width in ((0.25, 25), (-1.0, 0), (2.0, 100)):
        assert percent(WrittenPage(str(meter(share, "good", "x"))).root.all("rect")[1], "width") == [width]


def test_the_picture_is_xml_and_light() -> None:
    hostile = chart(Series(HOSTILE, [Point(1.0, 1.0, 1.0)] * 2), OURS)
    text = picture((chart(OURS, THEIRS), hostile), HOSTILE, HOSTILE)
    root = ElementTree.fromstring(text)
    assert root.get("width") == "960"
    assert not re.search(r"var\(|light-dark", text)
    assert ".side-0 { fill: #0c6b5b; stroke: #0c6b5b; }" in text
    assert not [found for found in root.iter() if found.tag.endswith(("script", "img"))]
