"""How much an answer can hold at most, and the counts of a constraint that are beyond it.

An answer that must have more is refused. A greatest count beyond the room limits nothing, so it is left out: some
versions of the grammar's library have a rule for each of the items that there may be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.grammar.documents import CannotRewrite
from drivetrain.text.grammar.plain import plain_schema
from drivetrain.text.grammar.schemas import brief_number, each_schema, number_fault

_EMBEDDED = re.compile(r"%json\s*")
_OF_REGEX = re.compile(r"\\.|\[(?:\\.|[^\[\]\\])*\]|\{(\d+)(?:,\d*)?\}", re.DOTALL)
_OF_GRAMMAR = re.compile(
    r'\\.|"(?:\\.|[^"\\\n])*"|/(?P<regex>(?:\\.|[^/\\\n])+)/|//[^\n]*|#[^\n]*|\[(?:\\.|[^\[\]\\\n])*\]'
    r"|\{\s*(?P<times>\d+)\s*(?:,\s*(?:\d+\s*)?)?\}|~\s*(?P<repeat>\d+)"
)
"""Both in linear time: what begins like a text, a class or a regex and does not end is passed over once."""


@dataclass(frozen=True, slots=True)
class Room:
    """What fits into the context: all of it, since what a prompt takes differs."""

    tokens: int
    chars: int
    """All tokens as long as the longest."""
    items: int
    """Of a list or an object, with something between each two."""

    def most(self, keyword: str) -> int:
        return self.items if keyword.endswith(("Items", "Properties")) else self.chars


_LEAST = ("minItems", "minLength", "minProperties")
_MOST = ("maxItems", "maxLength", "maxProperties")


def fit_schema(schema: Any, room: Room) -> tuple[Any, str]:
    """The schema in keywords that the library knows, without greatest counts that no answer reaches, or itself if it
    is that already; and what is wrong with it."""
    if fault := number_fault(schema):
        return schema, fault
    fitting, fault = _fit_counts(schema, room)
    if fault:
        return schema, fault
    try:
        plain = plain_schema(fitting)
    except CannotRewrite as exc:
        return schema, str(exc)
    except RecursionError:
        return schema, "too much nesting"
    except (TypeError, ValueError, LookupError, AttributeError):
        return schema, "a keyword whose value is none that JSON Schema knows"
    if plain is fitting:
        return fitting, ""
    return (schema, fault) if (fault := number_fault(plain)) else _fit_counts(plain, room)


def _fit_counts(schema: Any, room: Room) -> tuple[Any, str]:
    beyond = False
    for one in each_schema(schema):
        for keyword in _LEAST:
            if _is_beyond(one.get(keyword), most := room.most(keyword)):
                return schema, f"{keyword}: {brief_number(one[keyword])}; {_room(most, room)}"
        pattern = one.get("pattern")
        if isinstance(pattern, str) and (fault := regex_fault(pattern, room)):
            return schema, f"a pattern with {fault}"
        beyond = beyond or any(_is_beyond(one.get(keyword), room.most(keyword)) for keyword in _MOST)
    return (_without_greatest(schema, room) if beyond else schema), ""


def regex_fault(source: str, room: Room) -> str:
    """What is wrong with a repetition in it; empty if nothing is."""
    times = (int(found[1][:20]) for found in _OF_REGEX.finditer(source) if found[1])
    return _times_fault(times, room)


def grammar_fault(source: str, room: Room) -> str:
    """The same for a grammar, whichever of the two dialects it is in."""
    for found in _OF_GRAMMAR.finditer(source):
        if found["regex"] and (fault := regex_fault(found["regex"], room)):
            return fault
    times = (int(text[:20]) for found in _OF_GRAMMAR.finditer(source) if (text := found["times"] or found["repeat"]))
    return _times_fault(times, room)


def fit(constraint: Constraint, room: Room) -> Constraint:
    """The same without what limits nothing. Raises `InvalidRequest` for counts and numbers that cannot be held."""
    source, fault = constraint.source, ""
    if constraint.form is ConstraintForm.JSON_SCHEMA:
        schema = json.loads(source)
        fitting, fault = fit_schema(schema, room)
        source = source if fitting is schema else json.dumps(fitting, ensure_ascii=False)
    elif constraint.form is ConstraintForm.REGEX:
        fault = regex_fault(source, room)
    elif constraint.form is ConstraintForm.GRAMMAR:
        wide = replace(room, items=room.chars)  # a grammar may have lists with separators of its own
        fault = grammar_fault(source, wide)
        source, of_json = _fit_embedded(source, lambda schema: fit_schema(schema, wide))
        fault = fault or of_json
    if fault:
        raise InvalidRequest(f"constraint has {fault}", param="constraint")
    return constraint if source is constraint.source else replace(constraint, source=source)


def _fit_embedded(source: str, fit_one: Callable[[Any], tuple[Any, str]]) -> tuple[str, str]:
    """With the schemas behind `%json`, also where that stands in a text: no other reading of it hides one."""
    parts: list[str] = []
    at = num_unread = 0
    for found in _EMBEDDED.finditer(source):
        if found.start() < at:
            continue  # within one that was written anew
        try:
            schema, end = _DECODER.raw_decode(source, found.end())
        except (ValueError, RecursionError):
            num_unread += 1  # where it counts, the compiler refuses it
            if num_unread > MAX_UNREAD:
                return source, "too much behind %json that is no JSON"
            continue
        fitting, fault = fit_one(schema)
        if fault:
            return source, fault
        if fitting is not schema:
            parts += (source[at : found.end()], json.dumps(fitting))
            at = end
    return ("".join((*parts, source[at:])) if parts else source), ""


MAX_UNREAD = 100
"""Each costs as much time as the grammar is long."""

_DECODER = json.JSONDecoder()


def _without_greatest(schema: Any, room: Room) -> Any:
    copy = json.loads(json.dumps(schema))
    for one in each_schema(copy):
        for keyword in _MOST:
            if _is_beyond(one.get(keyword), room.most(keyword)):
                del one[keyword]
    return copy


def _is_beyond(count: Any, most: int) -> bool:
    return isinstance(count, (int, float)) and count > most


def _times_fault(times: Iterator[int], room: Room) -> str:
    worst = max(times, default=0)
    return f"a repetition of {brief_number(worst)} times; {_room(room.chars, room)}" if worst > room.chars else ""


def _room(most: int, room: Room) -> str:
    return f"an answer within the context of {room.tokens:,} tokens has at most {most:,}: ask for fewer"
