"""Whether a grammar and a validator agree about values of a schema: given ones, mutated ones and random answers.

A grammar writes JSON in one way: the keys of an object in the order of the schema, whole numbers without a point, one
space behind each comma and colon. So a value counts as accepted if it is in some order of its keys.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

from drivetrain.text.grammar.library import ByteMatcher, byte_ids, byte_matcher

MAX_TRIES = 400
"""Pieces of text for one value: an object that no order fits has many."""

MAX_BYTES = 1200
"""Of a random answer."""

STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    1.5,
    1e6,
    "",
    "a",
    "zz top",
    [],
    [1],
    ["a", "a"],
    {},
    {"zz": 1},
]

IsValid = Callable[[Any], bool]


class Undecided(Exception):
    """Too many orders to try."""


class Follower:
    """Follows values through one grammar, in Lark."""

    def __init__(self, lark: str, schema: Any) -> None:
        self._first = byte_matcher(lark)
        self._order = {key: number for number, key in enumerate(dict.fromkeys(_keys(schema)))}
        self._left = 0

    def accepts(self, value: Any) -> bool:
        """Raises `Undecided`."""
        self._left = MAX_TRIES
        return any(matcher.is_accepting() for matcher in self._values(self._first.deep_copy(), value))

    def answer(self, rng: random.Random) -> str | None:
        """A random one; None if it does not end."""
        matcher, text = self._first.deep_copy(), bytearray()
        while len(text) < MAX_BYTES:
            if matcher.is_stopped() or (matcher.is_accepting() and rng.random() < 0.5):
                return text.decode(errors="replace")
            ids = byte_ids(matcher.compute_bitmask())
            if matcher.is_error() or not ids:
                return None if not matcher.is_accepting() else text.decode(errors="replace")
            closing = [byte for byte in b'"}],' if byte in ids]
            usual = [byte for byte in ids if 32 <= byte < 127 and byte != 92] or ids
            late = len(text) > 200 or rng.random() < 0.3
            byte = rng.choice(closing) if closing and late else rng.choice(usual)
            matcher.consume_token(byte)
            text.append(byte)
        return None

    def _values(self, matcher: ByteMatcher, value: Any) -> Iterator[ByteMatcher]:
        if isinstance(value, Mapping):
            if (begun := self._text(matcher, "{")) is not None:
                left = sorted(value, key=lambda key: self._order.get(key, len(self._order)))
                yield from self._members(begun, value, left, first=True)
        elif isinstance(value, list):
            if (begun := self._text(matcher, "[")) is not None:
                yield from self._items(begun, value, 0)
        else:
            if (after := self._text(matcher, json.dumps(value, ensure_ascii=False))) is not None:
                yield after

    def _members(
        self, matcher: ByteMatcher, value: Mapping[str, Any], left: list[str], *, first: bool
    ) -> Iterator[ByteMatcher]:
        if not left and (closed := self._text(matcher, "}")) is not None:
            yield closed
        for key in left:
            head = f"{'' if first else ', '}{json.dumps(key, ensure_ascii=False)}: "
            if (begun := self._text(matcher, head)) is not None:
                others = [other for other in left if other != key]
                for after in self._values(begun, value[key]):
                    yield from self._members(after, value, others, first=False)

    def _items(self, matcher: ByteMatcher, value: list[Any], at: int) -> Iterator[ByteMatcher]:
        if at == len(value):
            if (closed := self._text(matcher, "]")) is not None:
                yield closed
            return
        begun = self._text(matcher, ", ") if at else matcher
        if begun is not None:
            for after in self._values(begun, value[at]):
                yield from self._items(after, value, at + 1)

    def _text(self, matcher: ByteMatcher, text: str) -> ByteMatcher | None:
        self._left -= 1
        if self._left < 0:
            raise Undecided
        copy = matcher.deep_copy()
        return copy if copy.consume_tokens(list(text.encode())) else None


def _keys(schema: Any) -> Iterator[str]:
    """All names of properties, as they come."""
    left = [schema]
    while left:
        item = left.pop(0)
        if isinstance(item, Mapping):
            if isinstance(named := item.get("properties"), Mapping):
                yield from named
            left += item.values()
        elif isinstance(item, list):
            left += item


def mutated(value: Any, schema: Any, rng: random.Random) -> Any:
    """A copy in which one thing is another."""
    copy = json.loads(json.dumps(value))
    places = list(_places(copy))
    if not places or rng.random() < 0.1:
        return rng.choice(STRANGE)
    holder, key = rng.choice(places)
    way, old = rng.random(), holder[key]
    if way < 0.2:
        del holder[key]
    elif way < 0.4:
        holder[key] = rng.choice(STRANGE)
    elif way < 0.55 and (told := _told(schema)):
        holder[key] = rng.choice(told)
    elif way < 0.7 and isinstance(holder, dict):
        names = list(dict.fromkeys(_keys(schema))) or ["a"]
        holder[rng.choice([*names, "a", "zz"])] = rng.choice([*STRANGE, old])
    elif isinstance(old, str):
        holder[key] = rng.choice([f"{old}x", old[1:], old.upper(), f"x{old}", old + old])
    elif isinstance(old, (int, float)) and not isinstance(old, bool):
        holder[key] = rng.choice([old + 1, old - 1, -old, old * 10, old + 0.5])
    elif isinstance(old, list) and old:
        holder[key] = rng.choice([old[1:], [*old, old[0]], [*old, rng.choice(STRANGE)], old[::-1]])
    else:
        holder[key] = [old]
    return copy


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, (dict, list)):
            keys = list(item) if isinstance(item, dict) else range(len(item))
            yield from ((item, key) for key in keys)
            left += [item[key] for key in keys]


def _told(schema: Any) -> list[Any]:
    """Values of `const` and `enum`."""
    found: list[Any] = []
    left = [schema]
    while left:
        item = left.pop()
        if isinstance(item, Mapping):
            found += item["enum"] if isinstance(item.get("enum"), list) else []
            found += [item["const"]] if "const" in item else []
            left += item.values()
        elif isinstance(item, list):
            left += item
    return found


@dataclass(slots=True)
class Agreement:
    """What was found of one schema or of many. `wrong` tells the values about which they differ."""

    valid: int = 0
    invalid: int = 0
    answers: int = 0
    undecided: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Agreement) -> None:
        self.valid += other.valid
        self.invalid += other.invalid
        self.answers += other.answers
        self.undecided += other.undecided
        self.wrong += other.wrong


def validator(schema: Any) -> IsValid:
    """Raises `jsonschema_rs.ValidationError` or `ReferencingError` for what is no schema."""
    is_valid: IsValid = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
    return is_valid


def agreement(schema: Any, lark: str, given: list[Any], *, seed: int, mutations: int, answers: int) -> Agreement:
    """`given` are values to begin with. Random answers are others, and must all be valid."""
    rng, found = random.Random(seed), Agreement()
    is_valid, follower = validator(schema), Follower(lark, schema)
    seeds = list(given)
    for _ in range(answers):
        text = follower.answer(rng)
        if text is None:
            continue
        value = json.loads(text, parse_float=_finite)
        found.answers += 1
        seeds.append(value)
        if not is_valid(value):
            found.wrong.append(f"an answer is invalid: {text[:300]}")
    values = [*given, *(mutated(rng.choice(seeds), schema, rng) for _ in range(mutations if seeds else 0))]
    for value in map(_without_points, values):
        valid = is_valid(value)
        try:
            accepted = follower.accepts(value)
        except Undecided:
            found.undecided += 1
            continue
        found.valid += valid
        found.invalid += not valid
        if valid != accepted:
            shown = json.dumps(value, ensure_ascii=False)[:300]
            found.wrong.append(f"{'valid and refused' if valid else 'invalid and accepted'}: {shown}")
    return found


def _without_points(value: Any) -> Any:
    """The same with whole numbers as the grammar writes them."""
    if isinstance(value, Mapping):
        return {key: _without_points(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_points(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _finite(text: str) -> float:
    """The validator takes no infinity."""
    return max(-1e300, min(float(text), 1e300))
