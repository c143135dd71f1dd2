"""An HTML report as it was written: whether its elements close in order, and what they hold."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"br", "link", "meta"}
FETCHING = {"src", "srcset", "action", "data", "poster", "background"}


@dataclass
class Node:
    name: str
    attributes: dict[str, str]
    parts: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    def all(self, name: str, class_: str = "") -> list[Node]:
        """Of this name and class, at any depth, in order."""
        found: list[Node] = []
        for part in self.parts:
            if isinstance(part, Node):
                if name in {part.name, "*"} and (not class_ or class_ in part.attributes.get("class", "").split()):
                    found.append(part)
                found += part.all(name, class_)
        return found

    def one(self, name: str, class_: str = "") -> Node:
        (found,) = self.all(name, class_)
        return found


class WrittenPage(HTMLParser):
    """Fails on an element that is closed in the wrong place or not at all."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root], f"not closed: {[node.name for node in self._open[1:]]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"{tag} has an attribute twice: {names}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self._open[-1].parts.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].name == tag, f"</{tag}> closes {self._open[-1].name}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].parts.append(data)

    @property
    def data(self) -> Any:
        (link,) = (node for node in self.root.all("a") if node.attributes.get("id") == "data")
        return json.loads(base64.b64decode(link.attributes["href"].partition("base64,")[2]))

    def check(self) -> None:
        """What holds for every report: nothing runs, nothing is fetched, ids are unique, links lead somewhere."""
        nodes = self.root.all("*")
        assert not {node.name for node in nodes} & {"script", "iframe", "object", "embed", "form", "img", "base"}
        for node in nodes:
            assert not FETCHING & node.attributes.keys(), node
            assert not [name for name in node.attributes if name.startswith("on") or name == "style"], node
            assert node.attributes.get("href", "#").startswith(("#", "data:")), node
        ids = [node.attributes["id"] for node in nodes if "id" in node.attributes]
        assert len(set(ids)) == len(ids)
        targets = [node.attributes["href"] for node in self.root.all("a")]
        assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)
        assert all(table.all("caption") for table in self.root.all("table"))
        for row in self.root.all("tbody") + self.root.all("tfoot"):
            assert all(line.parts[0].name == "th" for line in row.all("tr") if isinstance(line.parts[0], Node))
        drawn = [
            svg for svg in self.root.all("svg") if "x" not in svg.attributes and "aria-hidden" not in svg.attributes
        ]
        assert all(svg.attributes.get("role") == "img" and svg.attributes.get("aria-label") for svg in drawn)
        policy = next(meta.attributes["content"] for meta in self.root.all("meta") if "http-equiv" in meta.attributes)
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert len(self.root.all("h1")) == len(self.root.all("main")) == 1
        assert self.root.one("html").attributes["lang"] == "en"


HOSTILE = (
    "</title></style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    "\u202e\x00\x1b[31m\ud800 مرحبا 👩\u200d👩\u200d👧 &amp;"
)
"""A name, a prompt or an answer that tries everything."""
