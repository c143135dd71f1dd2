"""What commands print: answers on stdout, everything else on stderr, in whatever encoding the terminal has."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from drivetrain.core.errors import DrivetrainError

_NUMBERS = re.compile(r"\[\n\s+(?:[-+.\de]+,\n\s+)*[-+.\de]+\n\s+\]")
"""A list of numbers in indented JSON, which is easier to read on one line. No string contains a line break."""

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
_ESCAPED[ord("\r")] = ""


def tolerate_encodings() -> None:
    """A character that the terminal cannot show is escaped, instead of ending the program."""
    if sys.stdout is None:  # the caller closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Write to stdout at once. On a terminal, control characters are escaped: a model must not control it."""
    with _write_errors():
        sys.stdout.write(text.translate(_ESCAPED) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def on_terminal() -> bool:
    return sys.stdout.isatty()


def line(text: str = "") -> None:
    write(f"{text}\n")


def document(value: Any) -> None:
    """One JSON object on stdout. Other alphabets stay readable if the encoding has them."""
    text = json.dumps(value, indent=2, ensure_ascii=needs_ascii(), allow_nan=False)
    line(_NUMBERS.sub(lambda match: f"[{' '.join(match.group()[1:-1].split())}]", text))


def needs_ascii() -> bool:
    """Whether stdout might not have the characters of other alphabets."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"


def note(text: str) -> None:
    """Write to stderr. If that is closed, nobody could read it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text.translate(_ESCAPED) + "\n")
        sys.stderr.flush()


def aside(text: str) -> bool:
    """Show text on stderr, dimmed, if that is a terminal. Returns whether it is."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            sys.stderr.write(f"\x1b[2m{text.translate(_ESCAPED)}\x1b[0m")
            sys.stderr.flush()
            return True
    return False


def flush() -> None:
    with _write_errors():
        sys.stdout.flush()


def silence_stdout() -> None:
    """Keep the interpreter from writing the rest of the buffer when it exits, which would fail."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def one_line(text: str) -> str:
    return " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be."""
    whole = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in whole) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in whole
    )


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise DrivetrainError(f"cannot write the output: {exc.strerror or type(exc).__name__}") from exc
