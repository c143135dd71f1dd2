"""The language that forms are written in: which markers open and close a region of an answer, and how its inside reads.

Text outside all regions is content. `table.py` has a form in each row; `response_template.py` makes one of the template
that a model ships.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from drivetrain.text.answers.call_ids import CallIds
from drivetrain.text.answers.values import JSON, Dialect


class Part(Enum):
    CONTENT = "content"
    REASONING = "reasoning"
    CALLS = "tool_calls"
    EXTRA = "extra"
    NOTHING = "nothing"
    """Text that belongs to no part of the message."""


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """An object with the keys `name` and `arguments` (or `parameters`), or a list of such objects."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of the call that the opening names, as one object."""

    dialect: Dialect = JSON


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each argument of the call that the opening names between tags: `key` … `key_end`, `value` … `value_end`.

    A value is JSON or text, as the tool's schema says; without a schema it is JSON if it can be. `trims_line` drops one
    line break on each side of a value.

    Where a form marks what a value is, `text_mark` or one of the `json_marks` stands behind `key_end`: of the JSON type
    that is its key, or, with an empty key, of any.
    """

    key: str
    key_end: str
    value_end: str
    ends: tuple[str, ...]
    value: str = ""
    trims_line: bool = False
    loose_key: str = ""
    loose_end: str = ""
    """Patterns: what stands behind a value whose tag is missing, the next key (the group `key`) or the call's end."""
    text_mark: str = ""
    json_marks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.text_mark, *self.json_marks.values()) if self.text_mark else ()


@dataclass(frozen=True, slots=True)
class NoArguments:
    """The opening is the whole call."""


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls with keyword arguments, `f(a=1), g()`, up to a closing bracket."""


class Field(Protocol):
    """The inside of a region that is read as a whole, when it has closed."""

    def read(self, body: str, groups: dict[str, str]) -> Any:
        """Raises `ValueError` if the body cannot be read."""
        ...

    def spellings(self) -> Iterable[str]:
        """Texts that may name special tokens which the body needs."""
        ...


Inside = JsonCalls | Arguments | TaggedArguments | PythonCalls | NoArguments


@dataclass(frozen=True, slots=True)
class Region:
    """`opens` with the pattern `header` behind it, or `open_pattern`, begin it; `closes` or `close_pattern` end it.

    The group `name` of a pattern is the name of the call. If the header does not fit, the call is malformed. `bare`
    calls have no marker of their own: where tools are given, only their names open one. Where others are given, a call
    with an `aside` is no call but that part. One that `interrupts` may begin in reasoning, which it ends.
    """

    part: Part
    opens: tuple[str, ...] = ()
    header: str = ""
    open_pattern: str = ""
    closes: tuple[str, ...] = ()
    close_pattern: str = ""
    inside: Inside | None = None
    bare: bool = False
    aside: Part | None = None
    interrupts: bool = False
    field: Field | None = None
    name: str = ""
    strips: bool = True
    join: str | None = None
    repeats: bool = False


NAME_HERE, INDEX_HERE = "{name}", "{index}"


@dataclass(frozen=True, slots=True)
class CallWriting:
    """How a form writes calls: what its regions read. The arguments are those of its region of calls.

    `opens` the section of calls, then each `call` up to its arguments, with `{name}` and perhaps `{index}`, any number,
    in it; the arguments; what `ends` the call, `between` two of them (None: there is only one), `closes` the section.
    """

    call: str
    ends: str = ""
    opens: str = ""
    between: str | None = None
    closes: str = ""
    markers: tuple[str, ...] = ()
    """Each is part of `opens` or `call`, before the name, and makes free text a call: what comes behind it must follow.

    Without one, only an answer that begins with a call has any.
    """
    begins: str = ""
    """Where there are no markers, an answer that begins like this is a call; empty: like all of the call's opening."""
    avoids: str = ""
    """A regex that all free text matches which must not be written, since it would be read as a call."""
    goes_on: bool = False
    """Whether text may stand between calls and behind them."""
    gap: str = ""
    """Between tags, if the arguments are tagged. It may be left out."""
    lines: bool = False
    """Whether the value of a tagged argument stands on lines of its own."""
    reasoning: tuple[str, str] | None = None
    """What opens it and closes it, if those are not the markers of the region of reasoning."""
    content: str = ""
    """Opens the content, if it is not just what stands outside the regions."""
    content_ends: str = ""
    """May close it."""
    remark: tuple[str, str] | None = None
    """Around what may be said before a call, where content cannot be followed by one."""


@dataclass(frozen=True, slots=True)
class Form:
    """`silent` markers say nothing, wherever they stand outside the regions. `models` and `summary` are for people.

    A chat template that has all of the `signs` writes calls in this form.
    """

    name: str
    models: str
    summary: str
    regions: tuple[Region, ...]
    signs: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    silent_pattern: str = ""
    section: tuple[str, str] | None = None
    """Between these silent markers there are only calls: text is dropped."""
    outside: Region = Region(Part.CONTENT)
    line_starts: bool = True
    """Whether `^` in a pattern also matches behind a marker, and not only at the start of the answer."""
    keeps_halves: bool = False
    """Whether half of a marker at the end of the answer is part of the region that it would have closed."""
    call_ids: CallIds = CallIds.ANY
    """How a chat template of this form has the ids of calls."""
    writing: CallWriting | None = None
    """None: calls cannot be enforced."""

    @property
    def without_calls(self) -> Form:
        """For answers to chats without tools: what looks like a call is content."""
        ends = {close for region in self.regions if region.part is Part.CALLS for close in region.closes}
        kept = {close for region in self.regions if region.part is not Part.CALLS for close in region.closes}
        return replace(
            self,
            regions=tuple(region for region in self.regions if region.part is not Part.CALLS),
            silent=tuple(marker for marker in self.silent if marker not in ends - kept),
        )

    @property
    def reasoning_regions(self) -> tuple[Region, ...]:
        return tuple(region for region in self.regions if region.part is Part.REASONING)

    @property
    def reasoning(self) -> tuple[str, str] | None:
        """What opens reasoning and closes it, as the form's models write it."""
        if self.writing is not None and self.writing.reasoning is not None:
            return self.writing.reasoning
        marked = (r for r in self.regions if r.part is Part.REASONING and r.opens and r.closes)
        return next(((region.opens[0], region.closes[0]) for region in marked), None)

    @property
    def arguments(self) -> Inside | None:
        """How calls are written, by the first region of calls."""
        return next((region.inside for region in self.regions if region.part is Part.CALLS), None)
