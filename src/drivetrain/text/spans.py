"""Where text spells a special token."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=64)
def _pattern(specials: frozenset[str]) -> re.Pattern[str] | None:
    """Longest first, so that of two spellings at one place the longer is found."""
    if not specials:
        return None
    return re.compile("|".join(re.escape(s) for s in sorted(specials, key=lambda s: (-len(s), s))))


def find_specials(text: str, specials: frozenset[str]) -> list[tuple[int, int]]:
    """The (start, end) of each spelling in order, none overlapping."""
    pattern = _pattern(specials)
    return [match.span() for match in pattern.finditer(text)] if pattern else []
