"""JSON schemas of growing difficulty, whole and streamed, and those that no server can afford to compile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from drivetrain.tools.conform.answers import CHAT
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.client import Broken
from drivetrain.tools.conform.reading import brief, refused
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.STRUCTURED, BY_FIELD, needs=CHAT)

TOKENS = 300
LEVELS = 10_000
_ASK = "Describe a door of your house in JSON."


def record(title: str, **properties: Any) -> dict[str, Any]:
    """An object with all of these properties and no others."""
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_SIZE = record("size", width={"type": "integer", "minimum": 1, "maximum": 9}, tall={"type": "boolean"})
_LEAF = {"enum": ["oak", "iron"]}
_BY_KIND = [
    record("wooden", kind={"const": "wood"}, rings={"enum": [1, 2, 3]}),
    record("metal", kind={"const": "metal"}, alloy={"type": "boolean"}),
]

SCHEMAS: dict[str, tuple[str, Any, Callable[[Any], bool]]] = {
    "enum": (
        "an enum of texts, a number and null",
        record("enum", colour={"enum": ["red", "dark blue", 7, None]}),
        lambda v: _has(v, "colour") and v["colour"] in ("red", "dark blue", 7, None),
    ),
    "bounds": (
        "an integer, a text and a list with bounds",
        record(
            "bounds",
            age={"type": "integer", "minimum": 10, "maximum": 99},
            name={"type": "string", "minLength": 2, "maxLength": 6},
            marks={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        ),
        lambda v: _has(v, "age", "name", "marks") and _is_bounded(v),
    ),
    "pattern": (
        "a text with a pattern",
        record("pattern", code={"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"}),
        lambda v: _has(v, "code") and _is_code(v["code"]),
    ),
    "nested": (
        "an object in a list in an object",
        record("nested", sizes={"type": "array", "items": _SIZE, "minItems": 1, "maxItems": 2}),
        lambda v: _has(v, "sizes") and _is_sizes(v["sizes"]),
    ),
    "any_of": (
        "anyOf of two objects that differ in a const",
        {"title": "any_of", "anyOf": _BY_KIND},
        lambda v: _is_wooden(v) or _is_metal(v),
    ),
    "ref": (
        "references into $defs",
        {**record("ref", front={"$ref": "#/$defs/leaf"}, back={"$ref": "#/$defs/leaf"}), "$defs": {"leaf": _LEAF}},
        lambda v: _has(v, "front", "back") and all(leaf in ("oak", "iron") for leaf in v.values()),
    ),
}  # fmt: skip
"""What it is about, the schema, and whether a value fits it. Each has texts that end soon."""

EXPLOSIVE: dict[str, tuple[str, Any]] = {
    "product": (
        "an allOf of nine anyOf of five",
        {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(5)]} for i in range(9)]},
    ),
    "multiple": ("multipleOf 999983", {"type": "integer", "multipleOf": 999_983}),
}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "door", "strict": True, "schema": schema}}


def _fits(name: str, what: str, schema: Any, fits: Callable[[Any], bool]) -> None:
    @CASES.case(f"schema_{name}", asks=f"response_format with {what}", holds="the text fits the schema, streamed too")
    async def _check(t: Trial) -> None:
        fields = {**CHAT.prompt_fields(_ASK), "max_tokens": TOKENS, "response_format": schema_format(schema)}
        for ask, how in ((t.generate, "whole"), (t.stream, "streamed")):
            answer = await ask(CHAT, **fields)
            if answer.first.reason == "length" and answer.text.lstrip().startswith("{"):
                raise NotRun(f"the answer was not complete within {TOKENS} tokens")
            try:
                value = json.loads(answer.text)
            except (ValueError, RecursionError):
                raise Failed(f"the {how} text is not JSON: {brief(answer.text, 160)}") from None
            ensure(fits(value), f"the {how} answer does not fit the schema: {brief(value, 160)}")


def _refused(name: str, what: str, schema: Any) -> None:
    @CASES.case(f"explosive_{name}", asks=f"response_format with {what}", holds="4xx in time; the next request works")
    async def _check(t: Trial) -> None:
        await t.refuse(CHAT, "response_format", schema_format(schema))
        await _still_works(t, what)


@CASES.case("explosive_deep", asks=f"a schema of {LEVELS:,} levels", holds="4xx; the next request works")
async def _deep(t: Trial) -> None:
    """Written by hand: it is too deep for a JSON library."""
    body = json.dumps(t.body(CHAT, response_format=schema_format("DEEP")))
    deep = '{"items":' * LEVELS + "{}" + "}" * LEVELS
    what = f"a schema of {LEVELS:,} levels"
    try:
        refused(await t.post(CHAT.path, body.replace('"DEEP"', deep).encode()), what)
    except Broken as exc:
        raise Failed(f"{what}: {exc}") from None
    await _still_works(t, what)


async def _still_works(t: Trial, what: str) -> None:
    after = await t.post(CHAT.path, t.body(CHAT))
    ensure(after.status == 200, f"after {what} a plain request has status {after.status}: {brief(after.reply)}")


def _has(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and set(value) == set(names)


def _is_one_of(value: Any, *known: int) -> bool:
    return not isinstance(value, bool) and value in known


def _is_bounded(value: dict[str, Any]) -> bool:
    age, name, marks = value["age"], value["name"], value["marks"]
    return (
        (isinstance(age, int) and 10 <= age <= 99)
        and (isinstance(name, str) and 2 <= len(name) <= 6)
        and (isinstance(marks, list) and 2 <= len(marks) <= 3 and all(isinstance(mark, bool) for mark in marks))
    )


def _is_code(value: Any) -> bool:
    if not isinstance(value, str) or len(value) != 6 or value[2] != "-":
        return False
    return set(value[:2]) <= set("ABC") and set(value[3:]) <= set("0123456789")


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 2 and all(map(_is_size, value))


def _is_size(value: Any) -> bool:
    return (
        _has(value, "width", "tall") and _is_one_of(value["width"], *range(1, 10)) and isinstance(value["tall"], bool)
    )


def _is_wooden(value: Any) -> bool:
    return _has(value, "kind", "rings") and value["kind"] == "wood" and _is_one_of(value["rings"], 1, 2, 3)


def _is_metal(value: Any) -> bool:
    return _has(value, "kind", "alloy") and value["kind"] == "metal" and isinstance(value["alloy"], bool)


for _name, _row in SCHEMAS.items():
    _fits(_name, *_row)
for _name, _schema in EXPLOSIVE.items():
    _refused(_name, *_schema)
