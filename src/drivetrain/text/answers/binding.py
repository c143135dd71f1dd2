"""A form made ready to read with: its markers compiled, for text or for a tokenizer's special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.answers.forms import Arguments, Form, Part, Region, TaggedArguments
from drivetrain.text.answers.patterns import Pattern
from drivetrain.text.answers.search import Marker, Watch
from drivetrain.text.answers.symbols import Symbols
from drivetrain.text.answers.tagged import TaggedReader
from drivetrain.text.answers.values import Dialect


class Mark(Enum):
    """Markers that open no region."""

    SILENT = "silent"
    CLOSE = "close"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class BoundRegion:
    """`closing` finds its end; `recovery` finds where a malformed call ends: there, or where the next region begins.

    A region without a `header` is the malformed one that is opened when the header of `region` does not fit.
    """

    region: Region
    closing: Watch
    recovery: Watch
    closes: tuple[str, ...]
    dialect: Dialect | None = None
    tags: TaggedReader | None = None
    header: bool = True
    aside: BoundRegion | None = None
    """What it is where other tools are given."""


class BoundForm:
    def __init__(self, form: Form, symbols: Symbols) -> None:
        self.form = form
        self.symbols = symbols
        openings = (marker for region in form.regions for marker, _ in self._openings(region))
        self._opens = [replace(marker, what=Mark.OPEN) for marker in openings]
        interrupting = (marker for region in form.regions if region.interrupts for marker in self._openings(region))
        self._interrupting = [replace(marker, what=Mark.OPEN) for marker, header in interrupting if header]
        self.section = tuple(map(symbols.encode, form.section)) if form.section is not None else None
        markers: list[Marker] = []
        for region in form.regions:
            bound = self._bind(region)
            for marker, header in self._openings(region):
                markers.append(replace(marker, what=bound if header else replace(bound, header=False)))
        # Of equally long ones the first is found: what fits comes before what is malformed.
        markers.sort(key=lambda marker: not marker.what.header)
        markers.append(self._marker(Mark.SILENT, form.silent, form.silent_pattern))
        self.watch = Watch([marker for marker in markers if marker.literals or marker.pattern])

    def _openings(self, region: Region) -> Iterable[tuple[Marker, bool]]:
        """With whether the header fits."""
        if region.header:
            opens = "|".join(map(re.escape, region.opens))
            yield self._marker(None, (), f"(?:{opens}){region.header}"), True
            yield self._marker(None, region.opens, ""), False
        else:
            yield self._marker(None, region.opens, region.open_pattern), True

    def _marker(self, what: object, literals: tuple[str, ...], pattern: str) -> Marker:
        compiled = Pattern(pattern, self.symbols.by_spelling) if pattern else None
        return Marker(what, tuple(map(self.symbols.encode, literals)), compiled)

    def _bind(self, region: Region) -> BoundRegion:
        close = self._marker(Mark.CLOSE, region.closes, region.close_pattern)
        closing = [close] if close.literals or close.pattern else []
        dialect = None
        if isinstance(region.inside, Arguments):
            quotes = tuple(map(self.symbols.encode, region.inside.dialect.quotes))
            dialect = replace(region.inside.dialect, quotes=quotes)
        interrupting = self._interrupting if region.part is Part.REASONING else []
        aside = None if region.aside is None else replace(region, part=region.aside, inside=None, aside=None)
        return BoundRegion(
            region,
            closing=Watch([*closing, *interrupting]),
            recovery=Watch([*closing, *self._opens]),
            closes=close.literals,
            dialect=dialect,
            tags=TaggedReader(region.inside, self.symbols) if isinstance(region.inside, TaggedArguments) else None,
            aside=None if aside is None else self._bind(aside),
        )


def special_tokens(form: Form, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Those that the form uses. They are found as ids only; other markers are found in the text."""
    spelled = "\n".join(_spellings(form))
    return tuple(sorted(token for token in tokenizer.special_strings if token in spelled))


def _spellings(form: Form) -> Iterable[str]:
    """Everything in a form that may name special tokens."""
    yield from form.silent
    yield form.silent_pattern
    for region in (*form.regions, form.outside):
        yield from (*region.opens, *region.closes)
        yield from (text.replace("\\", "") for text in (region.header, region.open_pattern, region.close_pattern))
        if region.field is not None:
            yield from region.field.spellings()
        if isinstance(region.inside, Arguments):
            yield from region.inside.dialect.quotes
        if isinstance(region.inside, TaggedArguments):
            tags = region.inside
            yield from (tags.key, tags.key_end, *tags.marks, tags.value, tags.value_end, *tags.ends)
