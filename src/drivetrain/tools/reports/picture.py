"""Charts as an SVG file, for a document or a slide: always light, and without a style of its viewer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drivetrain.tools.reports.charts import Chart, bars_of, height_of
from drivetrain.tools.reports.drawing import field, text
from drivetrain.tools.reports.markup import Html, element
from drivetrain.tools.reports.page import style


def picture(charts: Sequence[Chart], title: str, under: str) -> str:
    """Bars side by side."""
    height, width = max(map(height_of, charts)) + 130, 480 * len(charts)
    drawn = [text("24", 34, title, class_="title", most=80), text("24", 54, under, most=120)]
    for i, chart in enumerate(charts):
        body = [text("0", 18, chart.title, class_="row"), text("0", 34, chart.about, most=70)]
        body.append(field(46, height_of(chart), bars_of(chart), left=0.0, width=100.0))
        drawn.append(element("svg", *body, x=str(24 + 480 * i), y="76", width="432", overflow="visible"))
    ground = element("rect", width="100%", height="100%", class_="ground")
    size = {"xmlns": "http://www.w3.org/2000/svg", "width": str(width), "height": str(height)}
    root = element("svg", element("style", Html(_light_style())), ground, *drawn, role="img", aria_label=under, **size)
    return f"{root}\n"


def _light_style() -> str:
    """The rules for SVG, with the light colours written out: not every viewer knows variables."""
    sheet = style()
    colours: dict[str, str] = dict(re.findall(r"(--[\w-]+): light-dark\((#\w+), #\w+\);", sheet))
    colours |= dict(re.findall(r"(--sans): ([^;]+);", sheet))
    rules = re.findall(r"^(?:svg|\.grid|\.base|\.reach|\.side-|rect\.side|line\.).*$", sheet, re.MULTILINE)
    own = (".ground { fill: var(--card); }", "svg text.title { fill: var(--ink); font-size: 18px; font-weight: bold; }")
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], "\n".join([*rules, *own])).replace('"', "'")
