"""Reads one answer by its form, a piece at a time, and gives out what it says. The one reader for all forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from drivetrain.core.answer import ContentPiece, Flaw, ReasoningPiece
from drivetrain.text.answers.binding import BoundForm, BoundRegion, Mark
from drivetrain.text.answers.forms import (
    Arguments,
    JsonCalls,
    NoArguments,
    Part,
    PythonCalls,
    Region,
    TaggedArguments,
)
from drivetrain.text.answers.insides import CallReader
from drivetrain.text.answers.schemas import ToolSchemas
from drivetrain.text.answers.search import Found
from drivetrain.text.answers.source import Reading, Source, Write
from drivetrain.text.answers.whole import WholeFields
from drivetrain.text.answers.writers import CallWriter, Emit, TextWriter

_OF_THE_CALL = re.compile(
    r"""[^\n]*(?:\n\s*(?:["{}\[\],:0-9]|-(?=[0-9]|\Z)|(?:true|false|null)\b|(?:t|tru?|f|fa|fals?|n|nul?)\Z)[^\n]*)*"""
)
"""The rest of a line, and the lines behind it that look like JSON. The last one may end in the middle of a word."""


HALF = 3
"""Characters of half a marker that can hardly be anything else."""


class Executor:
    """`run` reads `source` until it has ended.

    With `verbatim`, spaces at the start and the end of the answer are kept. With `content_last`, nothing opens a region
    once there is content, and nothing opens reasoning twice: it was made to a constraint, and may spell markers. With
    `calls_only`, half a marker at the end of the answer is the beginning of another call, and dropped.
    """

    def __init__(
        self,
        form: BoundForm,
        source: Source,
        tools: ToolSchemas,
        emit: Emit,
        *,
        verbatim: bool = False,
        content_last: bool = False,
        calls_only: bool = False,
    ) -> None:
        self.is_reasoning = False
        """Whether what was read last belongs to the reasoning."""
        self.has_reasoned = False
        """Whether reasoning was opened."""
        self._content_last = content_last
        self._calls_only = calls_only
        self._in_section = False
        self._form = form
        self._source = source
        self._tools = tools
        self._calls = CallWriter(emit)
        self._reader = CallReader(source, self._calls)
        self._texts = {
            Part.CONTENT: TextWriter(lambda text: emit(ContentPiece(text)), keeps_edges=verbatim),
            Part.REASONING: TextWriter(lambda text: emit(ReasoningPiece(text))),
        }
        self._fields = WholeFields(emit, self._texts, self._calls, tools)

    def run(self) -> Reading[None]:
        outside = _Outside(self._form, self._open)
        at_start, no_empty = True, False
        while True:
            write: Write = _drop if self._in_section else outside.write
            found = yield from self._source.find(
                self._form.watch, write, at_start=at_start, no_empty=no_empty, keeps=lambda half: not self._calls_only
            )
            if found is None:
                outside.close()
                self._texts[Part.CONTENT].finish()
                return
            if self._content_last and (outside.has_text or self._is_second(found.what)):
                outside.write(self._source.enter(found))
                at_start, no_empty = False, True
                continue
            no_empty = found.start == found.end
            at_start = self._form.form.line_starts
            if found.what is Mark.SILENT:
                self._silent(self._source.enter(found))
                outside.close()
                continue
            bound: BoundRegion = found.what
            groups = {name: self._source.slice(*span) for name, span in found.groups.items()}
            groups = {name: self._form.symbols.spell(text) for name, text in groups.items()}
            if bound.region.bare and self._is_no_tool(groups["name"]):
                outside.write(self._source.enter(found))
                at_start, no_empty = False, True
                continue
            if bound.aside is not None and self._is_no_tool(groups["name"]):
                bound = bound.aside
            outside.close()
            self._texts[Part.CONTENT].mark()
            yield from self._region(bound, found, groups, outside.write)

    def _keeps(self, part: Part, half: str) -> bool:
        """Whether half of the marker that closes a part is text of it, where the answer ends: it may be no more than a
        character that markers begin with."""
        if self._form.form.keeps_halves:
            return True
        return part is not Part.REASONING and len(half) < HALF and self._form.symbols.drop(half) == half

    def _is_no_tool(self, name: str) -> bool:
        """Of those that are given, if any are."""
        return bool(self._tools) and name not in self._tools

    def _silent(self, marker: str) -> None:
        if self._form.section is not None and marker in self._form.section:
            self._in_section = marker == self._form.section[0]

    def _is_second(self, what: object) -> bool:
        """Whether this opens reasoning again."""
        return self.has_reasoned and isinstance(what, BoundRegion) and what.region.part is Part.REASONING

    def _region(self, bound: BoundRegion, found: Found, groups: dict[str, str], write_outside: Write) -> Reading[None]:
        if bound.region.part not in self._texts:
            self._source.record()
        self._source.enter(found)
        if bound.region.inside is None:
            yield from self._text(bound, groups, empty=found.start == found.end)
        else:
            yield from self._call(bound, groups.get("name", ""), write_outside, at_end=found.at_end)

    def _text(self, bound: BoundRegion, groups: dict[str, str], *, empty: bool) -> Reading[None]:
        region = bound.region
        body = self._open(region, groups)
        self.is_reasoning = region.part is Part.REASONING
        self.has_reasoned = self.has_reasoned or self.is_reasoning
        while True:
            found = yield from self._source.find(
                bound.closing, body.write, no_empty=empty, keeps=partial(self._keeps, region.part)
            )
            if found is None or found.what is not Mark.OPEN:
                break
            if not self._is_no_tool(self._source.slice(*found.groups["name"])):
                break  # reasoning may quote how calls are written: only the name of a tool makes one there
            body.write(self._source.enter(found))
            empty = False
        if found is not None and found.what is not Mark.OPEN:
            self._source.enter(found)
        self.is_reasoning = False
        closes = bool(bound.closing.markers)
        flaw = Flaw.CUT_OFF if found is None and closes else Flaw.MALFORMED
        body.close(flaw, self._form.symbols.spell(self._source.recorded()))

    def _call(self, bound: BoundRegion, name: str, write_outside: Write, *, at_end: bool) -> Reading[None]:
        """Behind one that is malformed and never closed, what is not `_OF_THE_CALL` is content."""
        flaw = (yield from self._inside(bound, name)) if bound.header else Flaw.MALFORMED
        if flaw is None:
            yield from self._source.accept(bound.closes, after_spaces=True)
            self._source.recorded()
            return
        passed: list[str] = []
        found = yield from self._source.find(bound.recovery, passed.append)
        behind = ""
        if found is not None and found.what is Mark.CLOSE:
            self._source.enter(found)
        elif self._calls.open and flaw is Flaw.MALFORMED:
            behind = _OF_THE_CALL.sub("", "".join(passed), count=1)
        elif found is None and not bound.header and at_end:
            flaw = Flaw.CUT_OFF
        raw = self._form.symbols.spell(self._source.recorded().removesuffix(behind))
        if flaw is Flaw.MALFORMED or self._calls.open or raw.strip() not in bound.region.opens:
            self._calls.spoil(flaw, raw)
        write_outside(behind)

    def _inside(self, bound: BoundRegion, name: str) -> Reading[Flaw | None]:
        match bound.region.inside:
            case JsonCalls():
                return (yield from self._reader.json_calls(closes=bool(bound.closes)))
            case PythonCalls():
                return (yield from self._reader.python_calls())
            case Arguments():
                assert bound.dialect is not None
                return (yield from self._reader.arguments(name, bound.dialect))
            case TaggedArguments():
                assert bound.tags is not None
                flaw = yield from bound.tags.read(self._source, self._calls, name, self._tools)
                if flaw is None:
                    self._calls.end()
                return flaw
            case NoArguments():
                self._calls.begin(name)
                self._calls.arguments("{}")
                self._calls.end()
                return None
            case None:
                raise AssertionError("this region has no calls")
            case other:
                assert_never(other)

    def _open(self, region: Region, groups: dict[str, str]) -> Body:
        symbols = self._form.symbols
        if region.field is not None:
            whole = self._fields.open(region, groups)
            return Body(lambda text: whole.write(symbols.spell(text)), whole.close)
        if region.part not in self._texts:
            return Body(lambda _: None)
        stretch = self._texts[region.part]
        stretch.segment(strips=region.strips, join=region.join)
        return Body(lambda text: stretch.write(symbols.drop(text)))


def _drop(text: str) -> None:
    """Where text says nothing."""


@dataclass(frozen=True, slots=True)
class Body:
    """Where the text of a region goes. `close` tells what is wrong if it turns out to be a call that cannot be read."""

    write: Write
    close: Callable[[Flaw, str], None] = lambda flaw, raw: None


class _Outside:
    """Text outside the regions. It begins with its first character, and each marker parts it."""

    def __init__(self, form: BoundForm, open_: Callable[[Region, dict[str, str]], Body]) -> None:
        self._symbols = form.symbols
        self._region = form.form.outside
        self._open = open_
        self._body: Body | None = None
        self.has_text = False
        """Whether there is more than spaces."""

    def write(self, text: str) -> None:
        self.has_text = self.has_text or bool(self._symbols.drop(text).strip())
        if self._body is None and self._symbols.drop(text):
            self._body = self._open(self._region, {})
        if self._body is not None:
            self._body.write(text)

    def close(self) -> None:
        """Plain text goes on behind a marker as if there were none."""
        parted = self._region.field is not None or self._region.join is not None
        if self._body is not None and parted:
            self._body.close(Flaw.MALFORMED, "")
            self._body = None
