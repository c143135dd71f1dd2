"""From the bytes of a body to its judged values: counted, decoded, and judged by a table of fields.

Three megabytes of `{},{},…` are a million objects: seconds of work and hundreds of megabytes if they were made before
they are judged. Counting takes a few passes in C, none of which holds the GIL for long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import Kind, Schema, is_one_of, shown
from drivetrain.core.parameters import did_you_mean

IGNORED_HEADER = "x-drivetrain-ignored"
MAX_IGNORED_CHARS = 1000
MAX_NAME_CHARS = 100

ELSEWHERE: Mapping[str, str] = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses, or to /v1/embeddings",
    **dict.fromkeys(("instructions", "previous_response_id", "reasoning", "text"), "/v1/responses"),
    **dict.fromkeys(("system", "thinking", "output_config"), "/v1/messages"),
    "max_tokens_to_sample": "an older API; send max_tokens to /v1/messages",
    **dict.fromkeys(("options", "format", "think"), "/api/chat"),
    **dict.fromkeys(("raw", "template", "context"), "/api/generate"),
}
"""Where a field is at home that clients with another API in mind send."""

_WARN_HINT = " (a server started with --unknown-fields warn ignores such fields)"


@dataclass(frozen=True, slots=True)
class Field:
    """Values in `nothing` count as left out, as on other servers. An `inert` field is accepted and ignored. Of a
    `refused` one, only values that ask for nothing are accepted."""

    kind: Kind | Body
    meaning: str
    required: bool = False
    nothing: tuple[Any, ...] = ()
    inert: bool = False
    refused: bool = False

    def asks(self, value: Any) -> bool:
        """A null field counts as left out."""
        return value is not None and not is_one_of(value, self.nothing)

    def schema(self) -> Schema:
        schema = self.kind.schema()
        if not self.required:
            none = [{"const": value} for value in self.nothing]
            schema = {"anyOf": [schema, *none, {"type": "null"}]}
        return {**schema, "description": self.meaning}


class Values(dict[str, Any]):
    """The judged fields of a body, without those that ask for nothing. `ignored` names the fields that a lenient server
    left out; `hint` is added to the errors of a strict one."""

    def __init__(self, *, lenient: bool, hint: str) -> None:
        super().__init__()
        self.lenient = lenient
        self._hint = hint
        self.ignored: list[str] = []

    def leave_out(self, refusal: Unsupported) -> None:
        """Note that the refused field is left out, or raise the refusal if the server is strict."""
        if not self.lenient:
            raise self.hinted(refusal)
        self.note(refusal.param or "")

    def hinted(self, refusal: Unsupported) -> Unsupported:
        return Unsupported(refusal.message + self._hint, param=refusal.param)

    def note(self, name: str) -> None:
        """Note a field that was left out. The list is bounded: the header could not hold more."""
        if len(self.ignored) < MAX_IGNORED_CHARS:
            self.ignored.append(name)

    @property
    def headers(self) -> dict[str, str]:
        return ignored_header(self.ignored)


def ignored_header(names: list[str] | tuple[str, ...]) -> dict[str, str]:
    if not names:
        return {}
    shown_names = (ascii(name[:MAX_NAME_CHARS])[1:-1].strip() for name in dict.fromkeys(names))
    value = ", ".join(filter(None, shown_names))
    if len(value) > MAX_IGNORED_CHARS:  # cut between names: part of a name would look like another one
        whole = value[: MAX_IGNORED_CHARS - 5].rpartition(", ")[0]
        value = f"{whole}, ..." if whole else "..."
    return {IGNORED_HEADER: value}


@dataclass(frozen=True, slots=True)
class Body:
    """What one endpoint accepts. Unknown fields are judged first, then the others in the order of the table. Exactly
    one of `one_of` must be given. A `strict` body refuses unknown fields even on a lenient server."""

    name: str
    fields: Mapping[str, Field]
    one_of: tuple[str, ...] = ()
    strict: bool = False
    elsewhere: Mapping[str, str] | None = None
    """More of `ELSEWHERE`, for a body with a neighbour in its own API."""

    def judge(self, given: Mapping[str, Any], *, lenient: bool) -> Values:
        """Stops at the first fault. Raises `InvalidRequest` or `Unsupported`, naming the field."""
        values = Values(lenient=lenient and not self.strict, hint="" if self.strict else _WARN_HINT)
        self._judge_into(values, values, given, "")
        return values

    def judge_part(
        self, where: str, given: Mapping[str, Any], leave_out: Callable[[str], None] | None
    ) -> dict[str, Any]:
        """The same for an object inside a body, at the place `where`. `leave_out` is told what a lenient server
        leaves out."""
        values = Values(lenient=leave_out is not None, hint="")
        self._judge_into(values, values, given, f"{where}.")
        if leave_out is not None:
            for name in values.ignored:
                leave_out(name)
        return dict(values)

    def _judge_into(self, values: Values, into: dict[str, Any], given: Mapping[str, Any], where: str) -> None:
        for name in given:
            if name not in self.fields:
                if not values.lenient:
                    raise values.hinted(self._unknown(name, where))
                values.note(where + name)
        if self.one_of and sum(self.fields[name].asks(given.get(name)) for name in self.one_of) != 1:
            names = " or ".join(where + name for name in self.one_of)
            raise InvalidRequest(f"give either {names}", param=where + self.one_of[0])
        for name, field in self.fields.items():
            value = given.get(name)
            if field.required and value is None:
                raise InvalidRequest(f"{where}{name} is missing", param=where + name)
            if field.asks(value):
                self._judge_field(values, into, field, name, value, where)

    def _judge_field(
        self, values: Values, into: dict[str, Any], field: Field, name: str, value: Any, where: str
    ) -> None:
        if isinstance(field.kind, Body):
            if not isinstance(value, dict):
                raise InvalidRequest(f"{where}{name} must be an object, not {shown(value)}", param=where + name)
            into[name] = {}
            return field.kind._judge_into(values, into[name], value, f"{where}{name}.")
        judged = _judged(values, field.kind, where + name, value)
        if judged is not None and not field.inert:
            into[name] = judged
        return None

    def _unknown(self, name: str, where: str) -> Unsupported:
        shown_name = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 3] + "..."
        hint = ("" if where else self._placed(name)) or did_you_mean(name, self._honoured()) or "; see /openapi.json"
        return Unsupported(f"{where}{shown_name} is not a parameter of this endpoint{hint}", param=where + name)

    def _honoured(self) -> list[str]:
        return [name for name, field in self.fields.items() if not (field.inert or field.refused)]

    def _placed(self, name: str) -> str:
        """For a field that stands further inside here, or at the top of another API's body."""
        for outer, field in self.fields.items():
            if isinstance(field.kind, Body) and name in field.kind._honoured():
                return f"; did you mean {outer}.{name}?"
        place = {**ELSEWHERE, **(self.elsewhere or {})}.get(name)
        return "" if place is None else f"; it belongs to {place}"

    def schema(self) -> Schema:
        schema: Schema = {
            "title": self.name,
            "type": "object",
            "properties": {name: field.schema() for name, field in self.fields.items()},
            "required": [name for name, field in self.fields.items() if field.required],
            "additionalProperties": False,
        }
        if self.one_of:
            schema["oneOf"] = [
                {"required": [name], "properties": {name: {"not": {"enum": [None, *self.fields[name].nothing]}}}}
                for name in self.one_of
            ]
        return schema


def _judged(values: Values, kind: Kind, name: str, value: Any) -> Any:
    if values.lenient:
        return kind.judge_leniently(name, value, values.note)
    try:
        return kind.judge(name, value)
    except Unsupported as exc:
        raise values.hinted(exc) from None


MAX_DEPTH = 64
MAX_DIGITS = 1000
"""Of one number: parsing an integer takes time quadratic in its digits."""

STRINGS, KEYS, LISTS, OBJECTS, FRACTIONS = 1 / 4, 1 / 16, 1 / 16, 1 / 64, 1 / 16
"""How many strings (keys included), keys and so on a body may have, as a share of `max_values`: what costs more is
allowed less often."""

ESCAPES, BARE_BYTES = 4, 12
"""Escapes in strings, and bytes outside strings without white space, per allowed value."""

_SPACE = b" \t\r\n"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


def read_object(data: bytes, max_values: int) -> dict[str, Any]:
    """Raises `InvalidRequest`."""
    check_structure(data, max_values)
    value = _decoded(data)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def check_structure(data: bytes, max_values: int) -> None:
    """Raises `InvalidRequest` for a body that holds too much of anything, even if it is not JSON."""
    check = partial(_check_count, max_values=max_values)
    check(data.count(b"\\"), ESCAPES, "escapes in strings")
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    check(plain.count(b'"') // 2, STRINGS, "strings")
    bare = b"".join(plain.split(b'"')[::2]).translate(None, _SPACE)
    lists, objects = bare.count(b"["), bare.count(b"{")
    check(bare.count(b":"), KEYS, "keys")
    check(objects, OBJECTS, "objects")
    check(lists, LISTS, "lists")
    check(bare.count(b",") + lists + objects, 1, "values")
    check(_fractions(bare), FRACTIONS, "numbers with a fraction or an exponent")
    check(len(bare), BARE_BYTES, "bytes outside strings")
    if b"0" * (MAX_DIGITS + 1) in bare.translate(_DIGITS):
        raise InvalidRequest(f"the body has a number of more than {MAX_DIGITS:,} digits")
    if bare.count(b"]") > lists or bare.count(b"}") > objects:  # not counted above
        raise InvalidRequest("the body is not JSON: its brackets do not match")
    _check_depth(bare)


def _check_count(count: int, share: float, what: str, max_values: int) -> None:
    limit = int(max_values * share)
    if count > limit:
        raise InvalidRequest(
            f"the body has {count:,} {what}; the limit is {limit:,} with --max-body-values {max_values:,}"
        )


def _fractions(bare: bytes) -> int:
    booleans = bare.count(b"true") + bare.count(b"false")
    return bare.count(b".") + bare.count(b"e") + bare.count(b"E") - booleans


def _check_depth(bare: bytes) -> None:
    """Removes the innermost pairs, level by level."""
    brackets = bare.translate(None, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise InvalidRequest(f"the body is not JSON: brackets are nested more than {MAX_DEPTH} deep, or do not match")


def _decoded(data: bytes) -> Any:
    if data.startswith(b"\xef\xbb\xbf"):
        raise InvalidRequest("the body is not JSON: it begins with a byte order mark; send UTF-8 without one")
    fault = ""
    try:
        return _DECODER.decode(data.decode())
    except UnicodeDecodeError as exc:
        fault = f"byte {exc.start:,} is not UTF-8"
    except json.JSONDecodeError as exc:
        fault = f"{exc.msg[:1].lower()}{exc.msg[1:].removesuffix(' at')} at line {exc.lineno}, column {exc.colno}"
    except (ValueError, RecursionError):
        fault = "a number in it is too large, or it is nested too deeply"
    raise InvalidRequest(f"the body is not JSON: {fault}")  # raised here so that it does not keep the body's text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses duplicate keys: a proxy in front may have read the other value."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value] # None
        raise InvalidRequest(f"the body has {shown(twice)} twice in one object", param=twice)
    return unique


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body is not JSON: it contains {name}, which is not valid JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
