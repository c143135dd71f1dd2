"""What a JSON body holds, counted on its bytes before anything is made of it, and then the body decoded.

Three megabytes of `{},{},…` are a million objects: seconds of work and hundreds of megabytes for whoever makes them
first and judges them later. Counting takes some passes in C, none of which holds the interpreter for long.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import shown

MAX_DEPTH = 64
MAX_DIGITS = 1000
"""Of one number: making an integer of many digits takes the square of their count."""

STRINGS_OF, ARRAYS_OF, OBJECTS_OF, FRACTIONS_OF = 4, 16, 64, 16
"""One string (key or value) for so many values that are allowed, and so on: what costs more is allowed less."""

ESCAPES_A_VALUE = 4
BYTES_A_VALUE = 12
"""Escapes in strings, and bytes outside them without white space, for each value that is allowed."""

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
    """Raises `InvalidRequest` for a body that holds more than it may. It need not be JSON."""
    budget = _Budget(max_values)
    budget.hold(data.count(b"\\"), max_values * ESCAPES_A_VALUE, "escapes in strings")
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    budget.hold(plain.count(b'"') // 2, max_values // STRINGS_OF, "strings")
    bare = b"".join(plain.split(b'"')[::2]).translate(None, _SPACE)
    arrays, objects = bare.count(b"["), bare.count(b"{")
    budget.hold(objects, max_values // OBJECTS_OF, "objects")
    budget.hold(arrays, max_values // ARRAYS_OF, "arrays")
    budget.hold(bare.count(b",") + arrays + objects, max_values, "values")
    budget.hold(_fractions(bare), max_values // FRACTIONS_OF, "numbers with a fraction or an exponent")
    budget.hold(len(bare), max_values * BYTES_A_VALUE, "bytes outside strings")
    if b"0" * (MAX_DIGITS + 1) in bare.translate(_DIGITS):
        raise InvalidRequest(f"the body has a number of more than {MAX_DIGITS:,} digits")
    _check_depth(bare)


@dataclass(frozen=True, slots=True)
class _Budget:
    max_values: int

    def hold(self, count: int, limit: int, what: str) -> None:
        if count > limit:
            raise InvalidRequest(
                f"the body has {count:,} {what}; the limit is {limit:,} where --max-body-values is {self.max_values:,}"
            )


def _fractions(bare: bytes) -> int:
    words = bare.count(b"true") + bare.count(b"false")
    return bare.count(b".") + bare.count(b"e") + bare.count(b"E") - words


def _check_depth(bare: bytes) -> None:
    """Innermost pairs are taken away, level by level."""
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
        fault = f"{exc.msg[:1].lower()}{exc.msg[1:]} at line {exc.lineno}, column {exc.colno}"
    except (ValueError, RecursionError):
        fault = "a number or a nesting in it is too large"
    raise InvalidRequest(f"the body is not JSON: {fault}")  # here, so that it does not hold on to the body's text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values counts is anybody's guess, and a proxy in front may have guessed otherwise."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # None
        raise InvalidRequest(f"the body gives {shown(twice)} twice in one object", param=twice)
    return made


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body is not JSON: it holds {name}, which JSON has not")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
