"""The fenced blocks of a page, with what the page's comments say about them.

<!-- first: drivetrain serve smollm2-135m -->   is run before the block: what the reader has already
<!-- not run: needs a GPU -->                   excuses the block; the reasons are listed in `test_fences.py`
<!-- output -->                                 what the commands of the block before print
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_COMMENT = re.compile(r"<!-- (first|not run|output)(?:: (.+?))? -->")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    excuse: str | None = None
    first: tuple[str, ...] = ()
    is_output: bool = False

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Those that a reader follows."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("docs/guides/*.md")),
    ]


def blocks(page: Path) -> list[Block]:
    """Raises `ValueError` for a comment that is in front of no block, and for a fence that is left open."""
    found = list[Block]()
    comments = list[tuple[str, str]]()
    lines = page.read_text("utf-8").splitlines()
    name = str(page.relative_to(ROOT))
    begin: int | None = None
    for number, line in enumerate(lines, 1):
        if begin is not None:
            if line.strip() == "```":
                found.append(_block(name, begin, lines[begin - 1 : number], comments))
                begin, comments = None, []
        elif line.lstrip().startswith("```"):
            begin = number
        elif comment := _COMMENT.fullmatch(line.strip()):
            comments.append((comment[1], comment[2] or ""))
        elif comments:
            raise ValueError(f"{name}:{number}: <!-- {comments[-1][0]} --> is in front of no block")
    if begin is not None or comments:
        raise ValueError(f"{name}: the last block has no end")
    return found


def _block(page: str, begin: int, lines: list[str], comments: list[tuple[str, str]]) -> Block:
    head, *body, _ = lines
    indent = len(head) - len(head.lstrip())
    said = dict(comments)
    return Block(
        page=page,
        line=begin,
        language=head.strip().removeprefix("```"),
        text="\n".join(line[indent:] for line in body) + "\n",
        excuse=said.get("not run"),
        first=tuple(text for kind, text in comments if kind == "first"),
        is_output="output" in said,
    )
