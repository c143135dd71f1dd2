"""Formats of strings: which count, and those as patterns that not every engine's llguidance knows, or knows exactly."""

from __future__ import annotations

import re
from typing import Any

from drivetrain.text.grammar.schemas import each_schema

_PATH = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_HOST = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_USER = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@"
_AUTHORITY = f"(?:{_USER})?{_HOST}(?::[0-9]{{0,5}})?"
_SEGMENTS = f"(?:{_PATH}+(?:/{_PATH}*)*)?"
_REST = f"(?:[?](?:{_PATH}|[/?])*)?(?:#(?:{_PATH}|[/?])*)?"

_NO_COLON = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_RELATIVE = f"(?://{_AUTHORITY}(?:/{_PATH}*)*|/{_SEGMENTS}|(?:{_NO_COLON}+(?:/{_PATH}*)*)?)"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}(?:/{_PATH}*)*|/{_SEGMENTS}|{_SEGMENTS})"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"

_DATE = (
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
)
_TIME = (
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    "|23:59:60(?:[.][0-9]+)?(?:[zZ]|[+-]00:00))"
)
"""A leap second only comes at the end of a day, which is told by its time without an offset."""

PATTERNS = {
    "date": f"^(?:{_DATE})$",
    "time": f"^{_TIME}$",
    "date-time": f"^(?:{_DATE})[tT]{_TIME}$",
    "uri": f"^{_URI}{_REST}$",
    "uri-reference": f"^(?:{_URI}|{_RELATIVE}){_REST}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
}
"""As RFC 3986 has it, but for addresses in brackets, RFC 3339 and RFC 6901."""

_HONOURED = frozenset(("duration", "email", "hostname", "ipv4", "ipv6", "uuid", *PATTERNS))
_DEFINED = _HONOURED | {"idn-email", "idn-hostname", "iri", "iri-reference", "uri-template", "regex"}
"""By some version of JSON Schema. All others only describe, as it says itself."""

_MEANT = {re.sub("[^a-z0-9]", "", name): name for name in sorted(_DEFINED)}


def is_asserted(name: Any) -> bool:
    """Whether a format of this name counts."""
    return not isinstance(name, str) or name in _DEFINED or format_fault(name) != ""


def format_fault(name: Any) -> str:
    """Why a format cannot be honoured; empty if it can, or only describes."""
    if not isinstance(name, str) or name in _HONOURED:
        return ""
    if name in _DEFINED:
        return f"the format {name} is not supported; leave it out, or write a pattern"
    meant = _MEANT.get(re.sub("[^a-z0-9]", "", name.lower()))
    return f"there is no format {name[:40]!r}; is {meant} meant?" if meant else ""


def spell_formats(schema: dict[str, Any]) -> dict[str, Any]:
    """In place, also of what is in it: patterns for these formats, and none that only describes, wherever one is."""
    for one in each_schema(schema):
        _spell(one)
    return schema


def _spell(schema: dict[str, Any]) -> None:
    name = schema.get("format")
    if not is_asserted(name):
        del schema["format"]
    if not isinstance(name, str) or name not in PATTERNS:
        return
    del schema["format"]
    if "pattern" not in schema:
        schema["pattern"] = PATTERNS[name]
    elif isinstance(others := schema.setdefault("allOf", []), list):
        others.append({"pattern": PATTERNS[name]})
