"""One bar in a line of text or a table: how much of the whole, or of which parts it is made."""

from __future__ import annotations

from collections.abc import Iterable

from drivetrain.tools.reports.markup import Html, element


def stack(parts: Iterable[tuple[str, int, str]], said: str) -> Html:
    """One bar of several parts: the class of each, its share and its name."""
    given = [(kind, count, name) for kind, count, name in parts if count > 0]
    total, at, drawn = sum(count for _, count, _ in given), 0.0, []
    for kind, count, name in given:
        share = 100 * count / total
        rect = {"x": f"{at:.6g}%", "width": f"{share:.6g}%", "height": "10"}
        drawn.append(element("rect", element("title", f"{name}: {count}"), class_=kind, **rect))
        at += share
    return element("svg", *drawn, class_="meter", role="img", aria_label=said)


def meter(share: float, kind: str, said: str) -> Html:
    """How much of the whole, from 0 to 1."""
    width = f"{100 * min(1.0, max(0.0, share)):.6g}%"
    track = element("rect", class_="track", width="100%", height="10")
    bar = element("rect", class_=kind, width=width, height="10", rx="5")
    return element("svg", track, bar, class_="meter", role="img", aria_label=said)
