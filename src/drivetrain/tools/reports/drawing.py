"""What charts are drawn with: shapes in percent and type in pixels, so that they fit any width and stay readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from drivetrain.tools.reports.markup import Html, element

LEFT, WIDTH = 12.0, 86.0
"""Of the field in which values are drawn, in percent; the names of the marks stand left of it."""

LEGEND = 19
SHOWN_NAME = 44
"""Characters, which fit on a phone; tables have the whole names."""


def figure(title: str, about: str, drawn: Iterable[Html], height: int, said: str) -> Html:
    svg = element("svg", *drawn, width="100%", height=str(height), role="img", aria_label=f"{title}. {said}")
    return element("figure", element("figcaption", title, element("small", about)), svg, class_="chart")


def field(y: float, height: float, content: Iterable[Html], *, left: float = LEFT, width: float = WIDTH) -> Html:
    place = {"x": f"{left:.6g}%", "y": f"{y:.6g}", "width": f"{width:.6g}%", "height": f"{height:.6g}"}
    return element("svg", *content, overflow="visible", **place)


def text(
    x: str, y: float, text: str, *, anchor: str | None = None, class_: str | None = None, most: int = SHOWN_NAME
) -> Html:
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return element("text", shown, x=x, y=float(y), text_anchor=anchor, class_=class_)


def line(x1: str, y1: float, x2: str, y2: float, kind: str) -> Html:
    return element("line", x1=x1, y1=float(y1), x2=x2, y2=float(y2), class_=kind)


def legend(names: Sequence[str]) -> Iterator[Html]:
    """Of one side alone the title says enough."""
    for i, name in enumerate(names if len(names) > 1 else ()):
        yield element("rect", class_=f"side-{i}", x="0", y=str(LEGEND * i + 2), width="11", height="11", rx="2")
        yield text("18", LEGEND * i + 12, name)


def legend_height(names: Sequence[str]) -> int:
    return LEGEND * len(names) if len(names) > 1 else 0
