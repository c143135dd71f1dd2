"""The brackets of a regex that somebody else wrote, before it becomes a part of another."""

from __future__ import annotations


def bar_outside(pattern: str) -> bool | None:
    """Whether a bar stands outside all brackets; None if the brackets do not fit, or an escape has no end."""
    depth, in_class, found, at = 0, -1, False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
            if at == len(pattern):
                return None
        elif in_class >= 0:
            first = in_class + (2 if pattern.startswith("^", in_class + 1) else 1)
            if char == "]" and at != first:
                in_class = -1
        elif char == "[":
            in_class = at
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth < 0:
                return None
        elif char == "|" and not depth:
            found = True
        at += 1
    return None if depth or in_class >= 0 else found
