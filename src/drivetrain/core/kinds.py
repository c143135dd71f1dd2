"""Kinds of values: each validates a field, with our own error messages, and describes itself as a JSON schema.

A kind returns the value in the shape of the contract (lists as tuples) or raises `InvalidRequest` at the first fault.
Errors quote a bounded part of the value, however large it is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported

MAX_INT = 2**31 - 1
MAX_SHOWN_CHARS = 60

Schema = dict[str, Any]
LeaveOut = Callable[[str], None] | None
"""Gets the place of what a lenient server leaves out; None: it is refused."""


class Kind(ABC):
    @property
    @abstractmethod
    def takes(self) -> str:
        """What it accepts, as a phrase that follows "must be"."""

    @abstractmethod
    def judge(self, name: str, value: Any) -> Any:
        """The value in our shape. Raises `InvalidRequest` with `name`, or the place inside it, as its `param`."""

    def judge_leniently(self, name: str, value: Any, leave_out: Callable[[str], None]) -> Any:
        """The same, but what is not supported is left out: `leave_out` gets its place; no `Unsupported` is raised."""
        try:
            return self.judge(name, value)
        except Unsupported as exc:
            leave_out(exc.param or name)
            return None

    @abstractmethod
    def schema(self) -> Schema: ...

    def refuse(self, name: str, value: Any) -> InvalidRequest:
        return InvalidRequest(f"{name} must be {self.takes}, not {shown(value)}", param=name)


@dataclass(frozen=True, slots=True)
class Integer(Kind):
    low: int = 0
    high: int = MAX_INT

    takes = "an integer"

    def judge(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, value)
        if not self.low <= value <= self.high:
            raise InvalidRequest(f"{name} is {shown(value)}; it must be from {self.low} to {self.high}", param=name)
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A finite number from `low` to `high`; with `above`, `low` itself is refused."""

    low: float
    high: float
    above: bool = False

    takes = "a number"

    def judge(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(name, value)
        if not self.low <= value <= self.high or (self.above and value == self.low):
            bounds = (
                f"above {self.low:g} and up to {self.high:g}" if self.above else f"from {self.low:g} to {self.high:g}"
            )
            raise InvalidRequest(f"{name} is {shown(value)}; it must be {bounds}", param=name)
        return value

    def schema(self) -> Schema:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Boolean(Kind):
    takes = "true or false"

    def judge(self, name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.refuse(name, value)
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class String(Kind):
    non_empty: bool = False
    max_chars: int | None = None
    max_bytes: int | None = None
    """In UTF-8."""

    takes = "a string"

    def judge(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.refuse(name, value)
        if self.non_empty and not value:
            raise InvalidRequest(f"{name} is an empty string", param=name)
        if self.max_chars is not None and len(value) > self.max_chars:
            raise InvalidRequest(f"{name} is {len(value):,} characters; the limit is {self.max_chars:,}", param=name)
        check_text(name, value)
        if self.max_bytes is not None and len(value.encode()) > self.max_bytes:
            raise InvalidRequest(
                f"{name} is {len(value.encode()):,} bytes; the limit is {self.max_bytes:,}", param=name
            )
        return value

    def schema(self) -> Schema:
        least = {"minLength": 1} if self.non_empty else {}
        most = self.max_bytes if self.max_chars is None else self.max_chars
        return {"type": "string", **least, **({} if most is None else {"maxLength": most})}


@dataclass(frozen=True, slots=True)
class Matching(Kind):
    """A string of a form that `pattern` tells and `takes_phrase` spells out."""

    pattern: str
    takes_phrase: str

    @property
    def takes(self) -> str:
        return self.takes_phrase

    def judge(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(self.pattern, value, re.ASCII) is None:
            raise self.refuse(name, value)
        return value

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True, slots=True)
class OneOf(Kind):
    choices: type[StrEnum]

    @property
    def takes(self) -> str:
        return f"one of {', '.join(self.choices)}"

    def judge(self, name: str, value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in tuple(self.choices):
            raise InvalidRequest(f"{name} is {shown(value)}; it must be {self.takes}", param=name)
        return self.choices(value)

    def schema(self) -> Schema:
        return {"type": "string", "enum": [*map(str, self.choices)]}


@dataclass(frozen=True, slots=True)
class ListOf(Kind):
    """With `or_one`, a single item stands for a list of it."""

    item: Kind
    non_empty: bool = False
    or_one: bool = False
    most: int | None = None

    takes = "a list"

    def judge(self, name: str, value: Any) -> tuple[Any, ...]:
        if self.or_one and isinstance(value, str):
            return (self.item.judge(name, value),)
        if not isinstance(value, (tuple, list)):
            raise self.refuse(name, value)
        if self.non_empty and not value:
            raise InvalidRequest(f"{name} is empty", param=name)
        if self.most is not None and len(value) > self.most:
            raise InvalidRequest(f"{name} is {len(value):,} entries; the limit is {self.most:,}", param=name)
        judge = self.item.judge
        return tuple([judge(f"{name}[{i}]", item) for i, item in enumerate(value)])

    def schema(self) -> Schema:
        least = {"minItems": 1} if self.non_empty else {}
        most = {} if self.most is None else {"maxItems": self.most}
        several = {"type": "array", "items": self.item.schema(), **least, **most}
        return {"anyOf": [self.item.schema(), several]} if self.or_one else several


@dataclass(frozen=True, slots=True)
class Ids(Kind):
    """Token ids. Hundreds of thousands of valid ones take milliseconds."""

    non_empty: bool = False

    takes = "a list"

    def judge(self, name: str, value: Any) -> tuple[int, ...]:
        ints = isinstance(value, (tuple, list)) and set(map(type, value)) == {int}
        if not ints or min(value) < 0 or max(value) > MAX_INT:
            ids: tuple[int, ...] = ListOf(TOKEN_ID, non_empty=self.non_empty).judge(name, value)
            return ids
        return tuple(value)

    def schema(self) -> Schema:
        return ListOf(TOKEN_ID, non_empty=self.non_empty).schema()


@dataclass(frozen=True, slots=True)
class TokenMap(Kind):
    """Token ids to numbers. Keys in JSON are strings, so an id may be given as one."""

    bias: Number

    takes = "a map of token ids to numbers"

    def judge(self, name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise self.refuse(name, value)
        judge = self.bias.judge
        return {_token_id(name, key): judge(name, bias) for key, bias in value.items()}

    def schema(self) -> Schema:
        ids = {"pattern": "^[0-9]{1,9}$"}
        return {"type": "object", "propertyNames": ids, "additionalProperties": self.bias.schema()}


@dataclass(frozen=True, slots=True)
class Pair(Kind):
    first: Kind
    second: Kind
    takes_phrase: str

    @property
    def takes(self) -> str:
        return self.takes_phrase

    def judge(self, name: str, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise self.refuse(name, value)
        return self.first.judge(f"{name}[0]", value[0]), self.second.judge(f"{name}[1]", value[1])

    def schema(self) -> Schema:
        items = [self.first.schema(), self.second.schema()]
        return {"type": "array", "prefixItems": items, "minItems": 2, "maxItems": 2}


@dataclass(frozen=True, slots=True)
class StringMap(Kind):
    takes = "a map of strings to strings"

    def judge(self, name: str, value: Any) -> Mapping[str, str]:
        if not isinstance(value, Mapping) or not all(isinstance(x, str) for pair in value.items() for x in pair):
            raise self.refuse(name, value)
        return value

    def schema(self) -> Schema:
        return {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Table(Kind):
    """Names to values of any kind, which somebody else judges."""

    takes = "a table, or as text a JSON object"

    def judge(self, name: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.refuse(name, value)
        return value

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class CountOrBoolean(Kind):
    """True means 0 (the chosen tokens only), False means None."""

    count: Integer = Integer()

    @property
    def takes(self) -> str:
        return self.count.takes

    def judge(self, name: str, value: Any) -> int | None:
        if isinstance(value, bool):
            return 0 if value else None
        return self.count.judge(name, value)

    def schema(self) -> Schema:
        return {"anyOf": [self.count.schema(), {"type": "boolean"}]}


TOKEN_ID = Integer()


def _token_id(name: str, key: Any) -> int:
    if isinstance(key, str):
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise InvalidRequest(f"{name} has the key {shown(key)}; it must be a token id", param=name)
        return int(key)
    return TOKEN_ID.judge(name, key)


def refuse_unknown(where: str, value: Mapping[str, Any], known: Sequence[str], leave_out: LeaveOut) -> None:
    """Raise `Unsupported` for a key that means nothing here, naming its place."""
    for key in value:
        if key in known:
            continue
        place = f"{where}.{str(key)[:MAX_SHOWN_CHARS]}"
        if leave_out is None:
            raise Unsupported(f"{place} is not supported; the fields here are {', '.join(known)}", param=place)
        leave_out(place)


def check_text(name: str, text: str) -> None:
    """A lone surrogate cannot be encoded as UTF-8, so no tokenizer can take it."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} holds a lone surrogate, which is not text", param=name) from None


def is_one_of(value: Any, known: Iterable[Any]) -> bool:
    """By JSON's equality: true is not 1."""
    return any(value == other and type(value) is type(other) for other in known)


def shown(value: object) -> str:
    """For an error. Never builds the whole text only to cut it: a client may have sent millions of items."""
    if isinstance(value, (list, tuple)) and value:
        return f"a list of {len(value):,}"
    if isinstance(value, Mapping) and value:
        return f"an object of {len(value):,} entries"
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return "an integer of more than 30 digits"
    if isinstance(value, (str, bytes)):
        value = value[: MAX_SHOWN_CHARS + 1]
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
