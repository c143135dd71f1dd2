"""The one text that a call gives a custom tool, read from the call's arguments while they stream."""

from __future__ import annotations

import json
import re

from drivetrain.text.answers.strings import Escapes, StringScanner

_HALF = re.compile(r"(?:^|[^\\])(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$")
"""Half a surrogate pair at the end: the other half may follow."""


class TextArgument:
    """`{"key": "…"}` gives out its string; anything else is given out at the end, as it stands."""

    def __init__(self, key: str) -> None:
        self._opening = re.compile(rf'\s*\{{\s*"{re.escape(key)}"\s*:\s*"')
        self._head = ""
        self._held = ""
        self._scanner: StringScanner | None = None

    def feed(self, piece: str) -> str:
        """More of the arguments. Returns what they add to the text."""
        if self._scanner is None:
            self._head += piece
            found = self._opening.match(self._head, 0, _LONGEST_HEAD)
            if found is None:
                return ""
            self._scanner = StringScanner('"', Escapes.JSON)
            piece = self._head[found.end() :]
        if self._scanner.over:
            return ""
        self._scanner.feed(piece, 0)
        written = self._held + self._scanner.take()
        half = _HALF.search(written)
        self._held = half[1] if half and not self._scanner.over else ""
        return _unescaped(written.removesuffix(self._held))

    def rest(self) -> str:
        """The arguments have ended."""
        return self._head if self._scanner is None else _unescaped(self._held)


def is_whole(arguments: str) -> bool:
    """Whether they are an object: of what is cut off or malformed, a text may be only a part."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def text_argument(key: str, arguments: str) -> str:
    """The same of whole arguments, or of what came of them."""
    reader = TextArgument(key)
    return reader.feed(arguments) + reader.rest()


_LONGEST_HEAD = 200
"""Characters before the string, most of them blanks."""


def _unescaped(written: str) -> str:
    """Half a surrogate pair becomes U+FFFD."""
    text: str = json.loads(f'"{written}"')
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
