"""The page around a report: one file with its style and its data, no script, and nothing fetched."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.tools.reports.markup import Content, Html, element, join, visible
from drivetrain.tools.reports.parts import Tone, badge, code, facts_list

MOST_DATA_BYTES = 8 * 2**20
"""A report with more does not carry its data; --json writes them."""

COMMAND = "Command"
"""The fact that is shown as code, in a line of its own."""

MOST_TITLE, MOST_VERDICT = 200, 1000
"""Characters; models and servers can have any name."""

_LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 48 48" width="22" height="22" aria-hidden="true">'
    '<g fill="none" stroke="#1f9480" stroke-width="3.5" stroke-linejoin="round">'
    '<path d="M21.95 11.98 39.9 19.38A5 5 0 0 1 39.9 28.62L21.95 36.02A13 13 0 1 1 21.95 11.98Z"/>'
    '<circle cx="17" cy="24" r="5.5"/></g><circle cx="38" cy="24" r="2" fill="#1f9480"/></svg>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`mark` is the result in one or two words and `verdict` in one line.

    `facts` are what was measured and when; `origin` is the machine, the versions and the command.
    """

    tool: str
    title: str
    mark: str
    tone: Tone
    verdict: str
    facts: Sequence[tuple[str, Content]]
    origin: Mapping[str, str]


def page_of(head: Head, sections: Iterable[Content], data: object) -> str:
    """The whole file. `data` is the report as plain data."""
    title, verdict = visible(head.title, MOST_TITLE), visible(head.verdict, MOST_VERDICT)
    body = element(
        "body",
        element(
            "header",
            element("p", Html(_LOGO), element("span", head.tool), class_="brand"),
            element("h1", title),
            element("p", badge(head.mark, head.tone), element("span", verdict), class_="verdict"),
            facts_list([*head.facts, *map(_origin, head.origin.items())]),
        ),
        element("main", *sections),
        element("footer", _data(head.tool, data)),
    )
    return f'<!doctype html>\n<html lang="en">\n{_head(title)}\n{body}\n</html>\n'


def _origin(fact: tuple[str, str]) -> tuple[str, Content]:
    name, value = fact
    return name, code(value) if name == COMMAND else value


def _head(title: str) -> Html:
    icon = base64.b64encode(_LOGO.encode()).decode()
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=Html(_policy())),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href=Html(f"data:image/svg+xml;base64,{icon}")),
        element("style", Html(style())),
    )


@functools.cache
def style() -> str:
    return Path(__file__).with_name("style.css").read_text("utf-8")


def _policy() -> str:
    """Only this very style counts, so that even markup that got into a report by mistake could do nothing."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _data(tool: str, data: object) -> Html:
    text = json.dumps(data, indent=1, allow_nan=False).encode()
    if len(text) > MOST_DATA_BYTES:
        return element("p", "The data of this report are too large for this page; --json FILE writes them.")
    link = element(
        "a",
        f"data of this report (JSON, {max(1, len(text) // 1000):,} kB)",
        id="data",
        download=f"{tool.replace(' ', '-')}.json",
        href=Html(f"data:application/json;base64,{base64.b64encode(text).decode()}"),
    )
    return element("p", join("Everything in one file: nothing is loaded from elsewhere. ", link))
