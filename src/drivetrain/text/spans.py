"""Where text spells a special token."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any


def find_specials(text: str, specials: frozenset[str]) -> list[tuple[int, int]]:
    """The (start, end) of each spelling in order, none overlapping; of two at one place, the longer."""
    pattern = _pattern(specials - {""})
    return [match.span() for match in pattern.finditer(text)] if pattern else []


@lru_cache(maxsize=64)
def _pattern(specials: frozenset[str]) -> re.Pattern[str] | None:
    """Shaped as a trie, so that the work on a text does not grow with the number of spellings."""
    if not specials:
        return None
    root: dict[str, Any] = {}
    for special in specials:
        node = root
        for char in special:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_branch(root))


def _branch(node: dict[str, Any]) -> str:
    """What may follow; where a spelling ends here, the rest is optional and taken if it is there."""
    parts = [re.escape(char) + _branch(after) for char, after in sorted(node.items()) if char]
    if not parts:
        return ""
    whole = parts[0] if len(parts) == 1 and "" not in node else f"(?:{'|'.join(parts)})"
    return f"{whole}?" if "" in node else whole
