"""Numbers as people read them."""

from __future__ import annotations


def span(seconds: float) -> str:
    """With two or three significant digits."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for size, unit, next_size in ((60, "min", 3600), (3600, "h", 86_400)):
        if seconds < 2 * next_size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def percent(share: float) -> str:
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def many(number: int, what: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
