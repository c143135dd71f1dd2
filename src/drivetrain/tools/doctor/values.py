"""Values from a document that anybody may have written: of the requested kind, or None."""

from __future__ import annotations

from typing import Any

MOST = 1e18


def table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def number(value: Any) -> float | None:
    """At least 0, and no more than a count or a time can be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= MOST else None


def count(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
