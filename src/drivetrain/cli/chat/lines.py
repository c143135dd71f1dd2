"""The user's lines of a chat: typed at a prompt with history, or piped in."""

from __future__ import annotations

import contextlib
import io
import sys

TRIPLE_QUOTES = '"""'


class Lines:
    """At a terminal, readline edits the line and remembers earlier ones, for this session only."""

    def __init__(self) -> None:
        self.interactive = bool(sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty())
        if isinstance(sys.stdin, io.TextIOWrapper):  # bytes that are not text are refused when a message is made
            sys.stdin.reconfigure(errors="surrogateescape")
        if self.interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - importing it makes input() editable

    def next(self) -> str | None:
        """The next text, or None at the end. A text of several lines is written between triple quotes."""
        line = self._read("> ")
        if line is None or not line.lstrip().startswith(TRIPLE_QUOTES):
            return line
        parts = [line.lstrip().removeprefix(TRIPLE_QUOTES)]
        while not parts[-1].rstrip().endswith(TRIPLE_QUOTES):
            line = self._read("… ")
            if line is None:
                return "\n".join(parts)
            parts.append(line)
        parts[-1] = parts[-1].rstrip().removesuffix(TRIPLE_QUOTES)
        return "\n".join(parts).strip("\n")

    def unfinished(self) -> bool:
        """Whether the line that an interrupt has just discarded had any text."""
        try:
            import readline
        except ImportError:
            return False
        return self.interactive and bool(readline.get_line_buffer())

    def _read(self, prompt: str) -> str | None:
        if not self.interactive:
            line = sys.stdin.readline() if sys.stdin else ""
            return line.rstrip("\r\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            return None
