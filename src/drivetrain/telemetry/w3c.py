"""The two headers of W3C Trace Context: what of a caller's is taken as its place in a trace, and may be handed on."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_STATE_CHARS = 512
MAX_STATE_MEMBERS = 32

_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_PARENT = re.compile(rf"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(-[!-~]{{0,200}})?")
_MEMBER = re.compile(r"([a-z][a-z0-9_*/-]{0,240}(@[a-z][a-z0-9_*/-]{0,13})?=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256})?")


def trace_context(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """`traceparent`, and `tracestate` if it is good; nothing else ever. None: there is no valid parent."""
    if not headers:
        return None
    given = {name.lower(): value for name, value in headers.items()}
    parent, state = given.get("traceparent", "").strip(" \t"), given.get("tracestate", "").strip(" \t")
    if not _PARENT.fullmatch(parent):
        return None
    return {"traceparent": parent} | ({"tracestate": state} if _is_state(state) else {})


def _is_state(state: str) -> bool:
    members = state.split(",")
    return (
        0 < len(state) <= MAX_STATE_CHARS
        and len(members) <= MAX_STATE_MEMBERS
        and all(_MEMBER.fullmatch(member.strip(" \t")) for member in members)
    )
