"""The one way from the bytes of a request to its judged values: counted, decoded, judged by the endpoint's table.

Three megabytes of `{},{},…` are a million objects: seconds of work and hundreds of megabytes for whoever makes them
first and judges them later. Counting takes some passes in C, none of which holds the interpreter for long.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, NoReturn

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import shown
from drivetrain.server.budget import held_bytes, release_body
from drivetrain.server.context import Context
from drivetrain.server.exchange import Exchange
from drivetrain.server.fields import Body, Values
from drivetrain.server.settings import UnknownFields

AT_ONCE_BYTES = 65_536
"""A larger body is parsed by a thread, so that the event loop does not wait for it."""

MAX_DEPTH = 64
MAX_DIGITS = 1000
"""Of one number: making an integer of many digits takes the square of their count."""

STRINGS, KEYS, LISTS, OBJECTS, FRACTIONS = 1 / 4, 1 / 16, 1 / 16, 1 / 64, 1 / 16
"""How many strings (keys among them) there may be for each value that is allowed, and so on: what costs more is allowed
less."""

ESCAPES, BARE_BYTES = 4, 12
"""In strings, and outside of them without white space: so many for each value that is allowed."""

_SPACE = b" \t\r\n"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


async def read_body(
    exchange: Exchange, context: Context, body: Body, *, strict: bool = False, may_be_empty: bool = False
) -> Values:
    """Raises `InvalidRequest` or `Unsupported`, naming the field."""
    lenient = context.settings.unknown_fields == UnknownFields.WARN and not strict
    max_values = context.settings.max_body_values

    def parse(data: bytes) -> Values:
        return body.judge(read_object(data, max_values), lenient=lenient)

    held = 0
    try:
        data = await exchange.take_body()
        if may_be_empty and not data:
            data = b"{}"
        if len(data) <= AT_ONCE_BYTES:
            return parse(data)
        values = await asyncio.get_running_loop().run_in_executor(context.parser, parse, data)
        held = held_bytes(values)
        return values
    finally:
        release_body(exchange.scope, held)


def read_object(data: bytes, max_values: int) -> dict[str, Any]:
    """Raises `InvalidRequest`."""
    check_structure(data, max_values)
    value = _decoded(data)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def check_structure(data: bytes, max_values: int) -> None:
    """Raises `InvalidRequest` for a body that holds more than it may. It need not be JSON."""
    hold = partial(_hold, max_values=max_values)
    hold(data.count(b"\\"), ESCAPES, "escapes in strings")
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    hold(plain.count(b'"') // 2, STRINGS, "strings")
    bare = b"".join(plain.split(b'"')[::2]).translate(None, _SPACE)
    lists, objects = bare.count(b"["), bare.count(b"{")
    hold(bare.count(b":"), KEYS, "keys")
    hold(objects, OBJECTS, "objects")
    hold(lists, LISTS, "lists")
    hold(bare.count(b",") + lists + objects, 1, "values")
    hold(_fractions(bare), FRACTIONS, "numbers with a fraction or an exponent")
    hold(len(bare), BARE_BYTES, "bytes outside strings")
    if b"0" * (MAX_DIGITS + 1) in bare.translate(_DIGITS):
        raise InvalidRequest(f"the body has a number of more than {MAX_DIGITS:,} digits")
    if bare.count(b"]") > lists or bare.count(b"}") > objects:  # nothing above has counted these
        raise InvalidRequest("the body is not JSON: its brackets do not match")
    _check_depth(bare)


def _hold(count: int, share: float, what: str, max_values: int) -> None:
    limit = int(max_values * share)
    if count > limit:
        raise InvalidRequest(
            f"the body has {count:,} {what}; the limit is {limit:,} where --max-body-values is {max_values:,}"
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
        fault = f"{exc.msg[:1].lower()}{exc.msg[1:].removesuffix(' at')} at line {exc.lineno}, column {exc.colno}"
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
