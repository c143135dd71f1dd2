"""Formats of strings that not every engine's llguidance knows, as patterns that mean the same."""

from __future__ import annotations

from typing import Any

from drivetrain.text.grammar.schemas import each_schema

_PATH = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_HOST = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_USER = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@"
_AUTHORITY = f"(?:{_USER})?{_HOST}(?::[0-9]{{0,5}})?"
_SEGMENTS = f"(?:{_PATH}+(?:/{_PATH}*)*)?"
_REST = f"(?:[?](?:{_PATH}|[/?])*)?(?:#(?:{_PATH}|[/?])*)?"

PATTERNS = {
    "uri": f"^[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}(?:/{_PATH}*)*|/{_SEGMENTS}|{_SEGMENTS}){_REST}$",
}
"""As RFC 3986 has it, but for addresses in brackets."""


def spell_formats(schema: dict[str, Any]) -> dict[str, Any]:
    """In place, also of what is in it: patterns for these formats, wherever in the schema a format is one."""
    for one in each_schema(schema):
        _spell(one)
    return schema


def _spell(schema: dict[str, Any]) -> None:
    name = schema.get("format")
    if not isinstance(name, str) or name not in PATTERNS:
        return
    del schema["format"]
    if "pattern" not in schema:
        schema["pattern"] = PATTERNS[name]
    elif isinstance(others := schema.setdefault("allOf", []), list):
        others.append({"pattern": PATTERNS[name]})
