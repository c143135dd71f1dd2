"""Constraints that mean harm: small requests, each of which would take gigabytes or minutes somewhere.

`BOMBS` is by name: what goes into a body of `/v1/completions`. Most are refused; the others are answered, and must do
no harm either.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

COUNTS = (50_000, 1_000_000, 10**9, 2**32, 2**63 - 1, 10**30)
TIMES = (50_000, 1_000_000, 10**9)

Fields = dict[str, Any]


def _counted() -> Iterator[tuple[str, Any]]:
    """Schemas with a count, as the whole answer or somewhere in it."""
    for count in COUNTS:
        yield f"minItems {count}", {"type": "array", "minItems": count}
        yield f"maxItems {count}", {"type": "array", "maxItems": count}
        yield f"both items {count}", {"type": "array", "minItems": count, "maxItems": count}
        yield f"nulls {count}", {"type": "array", "items": {"type": "null"}, "maxItems": count, "minItems": 3}
        yield f"minLength {count}", {"type": "string", "minLength": count}
        yield f"maxLength {count}", {"type": "string", "maxLength": count}
        yield f"minProperties {count}", {"type": "object", "minProperties": count}
        yield f"maxProperties {count}", {"type": "object", "maxProperties": count}
        yield f"deep {count}", {"properties": {"a": {"items": {"anyOf": [{"type": "array", "maxItems": count}]}}}}
        yield f"prefix {count}", {"type": "array", "prefixItems": [{"type": "null"}], "minItems": count}


def _shaped() -> Iterator[tuple[str, Any]]:
    """Schemas that are large by what is in them."""
    for number in (1_000, 5_000):
        names = [f"p{i}" for i in range(number)]
        yield f"optional {number}", {"type": "object", "properties": {key: {"type": "null"} for key in names}}
        yield f"required {number}", {"type": "object", "properties": {key: {} for key in names}, "required": names}
        yield f"enum {number}", {"enum": [f"{i}{'x' * 20}" for i in range(number)]}
        yield f"anyOf {number}", {"anyOf": [{"const": {"a": i}} for i in range(number)]}
        yield f"lists {number}", {"anyOf": [{"type": "array", "maxItems": 8_000 + i} for i in range(number)]}
        yield f"patterns {number}", {"anyOf": [{"type": "string", "pattern": f"^{i}.*x"} for i in range(number)]}
    for wide, deep in ((5, 9), (3, 12), (20, 4)):
        yield f"product {wide} {deep}", {"allOf": [_any_required(wide, i) for i in range(deep)]}
    for times in (50, 90):
        yield f"nested lists {times}", _nested(times, {"type": "array", "minItems": 5_000, "maxItems": 5_000})
    yield "multiple", {"type": "integer", "multipleOf": 9_973, "minimum": 0, "maximum": 10**15}
    yield "multiples", {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949)]}


def _any_required(wide: int, number: int) -> Any:
    return {"anyOf": [{"required": [f"{number}{other}"]} for other in range(wide)]}


def _nested(times: int, schema: dict[str, Any]) -> Any:
    inner: Any = {"type": "null"}
    for _ in range(times):
        inner = {**schema, "items": inner}
    return inner


def _regexes() -> Iterator[tuple[str, str]]:
    for times in TIMES:
        yield f"letter {times}", f"a{{{times}}}"
        yield f"class {times}", f"[a-z ]{{{times}}}"
        yield f"hidden letter {times}", f"[ab]a{{{times}}}"
        yield f"up to {times}", f"(ab?){{0,{times}}}c"
        yield f"words {times}", f"(abc|def){{{times},}}"
    for inner, outer in itertools.product((100, 1_000), (100, 1_000)):
        yield f"nested {inner} {outer}", f"((a{{{inner}}}){{{outer}}}){{10}}"
        yield f"nested choice {inner} {outer}", f"(([ab]{{{inner}}}x?){{{outer}}}y?){{10}}"
    for far in (12, 18, 40):
        yield f"look back {far}", f"(.|\\n)*a.{{{far}}}b"
        yield f"look back twice {far}", f"(.*a.{{{far}}}.*b.{{{far}}})+"
    yield "alternatives", "|".join(f"{i}x*" for i in range(5_000))


def _larks() -> Iterator[tuple[str, str]]:
    for times in TIMES:
        yield f"text {times}", f'start: "x"{{{times}}}'
        yield f"rule {times}", f'start: x{{{times}}}\nx: "a" | "b" x'
        yield f"tilde {times}", f'start: x~{times}\nx: "a" | "b"'
        yield f"between {times}", f"start: x{{5,{times}}}\nx: /[ab]c?/"
        yield f"json {times}", f'start: %json {{"type": "array", "minItems": {times}}}'
        yield f"json behind {times}", f'start: "x" list\nlist: %json {{"type": "array", "maxItems": {times}}}'
        yield f"separated {times}", f'start: %json {{"maxItems": {times}, "x-guidance": {{"item_separator": ";"}}}}'
        yield f"regex {times}", f"start: X\nX: /a{{{times}}}/"
        yield f"hidden {times}", f'start: ("a" | "b") X\nX: /a{{{times}}}/'
        yield f"within a text {times}", f'start: "%json " %json {{"type": "array", "maxItems": {times}}}'
    for number in (2_000, 20_000):
        yield f"words {number}", "start: " + " | ".join(f'"w{i}"' for i in range(number))
        yield (
            f"rules {number}",
            "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}?' for i in range(number)) + f'\nr{number}: "b"',
        )
        yield f"sequence {number}", "start: " + " ".join(f'"a{i}" /[a-z]+/' for i in range(number))
    for number in (10, 20, 40):
        doubled = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(number))
        yield f"doubled {number}", f'start: r0\n{doubled}\nr{number}: "a"'
        yield f"doubled choice {number}", f'start: r0\n{doubled}\nr{number}: "a" | "b"'
    yield "both and not", "start: T\nT: /.*a.{12}/ & ~/.*b.{12}/"
    yield "ambiguous", 'start: a\na: a a | "x" | ""'
    yield "left", 'start: start "a" | "b"'


def _gbnfs() -> Iterator[tuple[str, str]]:
    for times in TIMES:
        yield f"text {times}", f'root ::= "x"{{{times}}}'
        yield f"class {times}", f"root ::= [a-z]{{{times}}}"
        yield f"group {times}", f'root ::= ("a" | "b" root){{{times},}}'
        yield f"up to {times}", f'root ::= "x" [ab]{{0,{times}}}'
    for number in (2_000, 10_000):
        chain = "\n".join(f"r{i} ::= r{i + 1}" for i in range(number))
        yield f"chain {number}", f'root ::= r0\n{chain}\nr{number} ::= "a"'
        yield f"words {number}", "root ::= " + " | ".join(f'"w{i}"' for i in range(number))
    yield "deep", "root ::= " + "(" * 3_000 + '"a"' + ")" * 3_000
    yield "undefined", "root ::= x"
    yield "no root", 'x ::= "a"'
    yield "itself", "root ::= root"
    yield "ambiguous", 'root ::= root root | "a" | ""'


def _all() -> Iterator[tuple[str, Fields]]:
    for name, schema in (*_counted(), *_shaped()):
        yield f"schema: {name}", {"json_schema": schema}
    for name, schema in _counted():
        lark = f"start: %json {json.dumps(schema)}"
        yield f"json in lark: {name}", {"grammar": lark}
    for name, source in _regexes():
        yield f"regex: {name}", {"regex": source}
        yield f"pattern: {name}", {"json_schema": {"type": "string", "pattern": f"^({source})$"}}
    for name, source in _larks():
        yield f"lark: {name}", {"grammar": source}
    for name, source in _gbnfs():
        yield f"gbnf: {name}", {"grammar": source}


BOMBS: dict[str, Fields] = dict(_all())


def fresh(number: int) -> Fields:
    """A bomb that takes all of a trial's time, another one for each number."""
    return {"json_schema": {"type": "object", "properties": {f"{number}_{i}": {"type": "null"} for i in range(12_000)}}}
