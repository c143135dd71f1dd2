"""JSON schemas of growing difficulty, whole and streamed. Each has texts that end soon, so that a small model ends."""

from __future__ import annotations

from typing import Any

from drivetrain.tools.conform.answers import CHAT, ParsedChoice
from drivetrain.tools.conform.case import BY_FIELD, Area, Cases
from drivetrain.tools.conform.fitting import fits
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import NotRun

CASES = Cases(Area.STRUCTURED, BY_FIELD, needs=CHAT)

TOKENS = 300
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


def _deep(levels: int) -> Any:
    return record("deep", inner=_deep(levels - 1)) if levels else {"type": "boolean"}


_BOOL = {"type": "boolean"}
_SIZE = record("size", width={"type": "integer", "minimum": 1, "maximum": 9}, tall=_BOOL)
_LEAF = {"enum": ["oak", "iron"]}
_BY_KIND = [
    record("wooden", kind={"const": "wood"}, rings={"enum": [1, 2, 3]}),
    record("metal", kind={"const": "metal"}, alloy=_BOOL),
]
_NODE = record("node", leaf=_LEAF, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})

SCHEMAS: dict[str, tuple[str, Any]] = {
    "flat": ("a flat object", record("flat", open=_BOOL, colour={"type": "string", "maxLength": 8})),
    "enum": ("an enum of texts, a number and null", record("enum", colour={"enum": ["red", "dark blue", 7, None]})),
    "const": ("a text and a number as const", record("const", kind={"const": "door"}, version={"const": 2})),
    "bounds": (
        "an integer, a text and a list with bounds",
        record(
            "bounds",
            age={"type": "integer", "minimum": 10, "maximum": 99},
            name={"type": "string", "minLength": 2, "maxLength": 6},
            marks={"type": "array", "items": _BOOL, "minItems": 2, "maxItems": 3},
        ),
    ),
    "integers": (
        "integers with exclusive and negative bounds",
        record(
            "integers",
            low={"type": "integer", "minimum": -20, "exclusiveMaximum": -10},
            high={"type": "integer", "exclusiveMinimum": 98, "maximum": 101},
        ),
    ),
    "number": (
        "a number with bounds",
        record("number", part={"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    ),
    "pattern": (
        "a text with a pattern",
        record("pattern", code={"type": "string", "pattern": "^[A-C]{2}-[0-9]{3}$"}),
    ),
    "format": ("a text with the format date", record("format", day={"type": "string", "format": "date"})),
    "nested": (
        "an object in a list in an object",
        record("nested", sizes={"type": "array", "items": _SIZE, "minItems": 1, "maxItems": 2}),
    ),
    "deep": ("objects in objects, six levels", _deep(6)),
    "list": (
        "a list at the top",
        {"title": "list", "type": "array", "items": _LEAF, "minItems": 2, "maxItems": 3},
    ),
    "any_of": ("anyOf of two objects that differ in a const", {"title": "any_of", "anyOf": _BY_KIND}),
    "ref": (
        "references into $defs",
        {**record("ref", front={"$ref": "#/$defs/leaf"}, back={"$ref": "#/$defs/leaf"}), "$defs": {"leaf": _LEAF}},
    ),
    "recursive": (
        "an object that may hold one of its own kind",
        {**record("recursive", first={"$ref": "#/$defs/node"}), "$defs": {"node": _NODE}},
    ),
    "closed": (
        "optional properties and no others",
        {"title": "closed", "type": "object", "properties": {"ajar": _BOOL, "leaf": _LEAF},
         "additionalProperties": False},
    ),
    "keys": (
        "keys with Unicode, quotes, a backslash and a line break",
        record("keys", **{"größe": _BOOL, "名前 🚪": _LEAF, 'a "b"\\c': _BOOL, "line\nbreak": _BOOL}),
    ),
}  # fmt: skip
"""What it is about, and the schema."""


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "door", "strict": True, "schema": schema}}


def _fits(name: str, what: str, schema: Any) -> None:
    @CASES.case(f"schema_{name}", asks=f"response_format with {what}", holds="the text fits the schema, streamed too")
    async def _check(t: Trial) -> None:
        fields = {**CHAT.prompt_fields(_ASK), "max_tokens": TOKENS, "response_format": schema_format(schema)}
        for ask, how in ((t.generate, "whole"), (t.stream, "streamed")):
            choice = (await ask(CHAT, **fields)).first
            is_complete(choice, TOKENS)
            fits(choice.text, schema, f"{how} answer")


def is_complete(choice: ParsedChoice, tokens: int) -> None:
    """Raises `NotRun` for JSON that is cut off: that is the model's doing. Other text is judged as it is."""
    if choice.reason == "length" and (choice.text.lstrip()[:1] in {"{", "["} or not choice.text):
        raise NotRun(f"the answer was not complete within {tokens} tokens")


for _name, _row in SCHEMAS.items():
    _fits(_name, *_row)
