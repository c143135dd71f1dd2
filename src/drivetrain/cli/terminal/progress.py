"""The progress of a download or a load: one line on stderr that is redrawn, or now and then a line in a file."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TextIO

from drivetrain.core.engine import NOTE
from drivetrain.store.display import size as size_text

DRAW_EVERY_S = 0.1
APPEND_AFTER_S = 2.0
APPEND_EVERY_S = 10.0
BAR_CHARS = 24

_SIZES = re.compile(r" \((?P<done>[\d.]+ (?:bytes|[kMGT]B))(?: of (?P<total>[\d.]+ (?:bytes|[kMGT]B)))?\)$")
"""How the store ends the text of a download. `Progress` has no field for bytes, so they are parsed from it."""

_UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(slots=True)
class Phase:
    """One step of the work: what was known when it began, and what is known now."""

    label: str
    began: float
    first_share: float | None
    first_bytes: float | None
    now: float = 0.0
    share: float | None = None
    done: str = ""
    total: str = ""

    @property
    def rate(self) -> float | None:
        """Bytes per second since it began, without what an earlier run had fetched."""
        elapsed = self.now - self.began
        if self.first_bytes is None or not self.done or elapsed <= 0:
            return None
        return max(0.0, _num_bytes(self.done) - self.first_bytes) / elapsed

    @property
    def eta_s(self) -> float | None:
        if self.share is None or self.first_share is None or self.share <= self.first_share or self.share >= 1:
            return None
        return (self.now - self.began) * (1 - self.share) / (self.share - self.first_share)


@dataclass(slots=True)
class ProgressLine:
    """A `Progress` callback; any thread may call it. Closing it wipes its line, and later calls do nothing."""

    stream: TextIO
    is_tty: bool
    quiet: bool = False
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _phase: Phase | None = None
    _began: float | None = None
    _shown: float = float("-inf")
    _shown_label: str = ""
    _drawn: bool = False
    _closed: bool = False

    def __call__(self, what: str, share: float | None) -> None:
        with self._lock:
            if self._closed or self.quiet:
                return
            try:
                if NOTE in what:
                    self._write_note(what)
                    return
                phase = self._update(what, share)
                self._draw(phase) if self.is_tty else self._append(phase)
            except (OSError, ValueError):
                self._closed = True  # nobody can see it any more

    def close(self) -> None:
        with self._lock:
            if self._drawn and not self._closed:
                self.stream.write("\r\x1b[K")
                self.stream.flush()
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _update(self, what: str, share: float | None) -> Phase:
        now = self.clock()
        sizes = _SIZES.search(what)
        label = what[: sizes.start()] if sizes else what
        done, total = (sizes["done"], sizes["total"] or "") if sizes else ("", "")
        if self._began is None:
            self._began = now
        phase = self._phase
        if phase is None or phase.label != label:
            phase = self._phase = Phase(label, now, share, _num_bytes(done) if done else None)
        phase.now, phase.share, phase.done, phase.total = now, share, done, total
        return phase

    def _write_note(self, text: str) -> None:
        """In the place of the line, which is drawn again below it."""
        self.stream.write(f"\r\x1b[K{text}\n" if self._drawn else f"{text}\n")
        self.stream.flush()
        self._drawn, self._shown_label = False, ""

    def _draw(self, phase: Phase) -> None:
        if phase.label == self._shown_label and phase.now - self._shown < DRAW_EVERY_S:
            return
        self._shown, self._shown_label, self._drawn = phase.now, phase.label, True
        self.stream.write(f"\r{describe(phase)[: _columns(self.stream) - 1]}\x1b[K")
        self.stream.flush()

    def _append(self, phase: Phase) -> None:
        """Nothing for quick work; after a while each new phase, and a long one now and then."""
        assert self._began is not None
        due = phase.now - self._shown >= APPEND_EVERY_S or phase.label != self._shown_label
        if phase.now - self._began < APPEND_AFTER_S or not due:
            return
        self._shown, self._shown_label = phase.now, phase.label
        self.stream.write(describe(phase, bar=False) + "\n")
        self.stream.flush()


def progress_line(*, quiet: bool = False) -> ProgressLine:
    return ProgressLine(sys.stderr, sys.stderr.isatty(), quiet)


def describe(phase: Phase, *, bar: bool = True) -> str:
    """`downloading x [####----]  40%  39.3 MB of 98.4 MB  5.2 MB/s  eta 0:11`, as far as it is known."""
    if phase.share is not None and phase.share >= 1:
        return phase.label
    if phase.share is None or (phase.share == 0 and not phase.done):
        return f"{phase.label}{f'  {phase.done}' if phase.done else ' …'}"
    filled = round(phase.share * BAR_CHARS)
    drawn = f" [{'#' * filled}{'-' * (BAR_CHARS - filled)}]" if bar else ""
    parts = [f"{phase.label}{drawn}", f"{phase.share:4.0%}"]
    if phase.done:
        parts.append(phase.done + (f" of {phase.total}" if phase.total else ""))
    if phase.rate:
        parts.append(f"{size_text(int(phase.rate))}/s")
    if phase.eta_s is not None:
        parts.append(f"eta {int(phase.eta_s) // 60}:{int(phase.eta_s) % 60:02}")
    return "  ".join(parts)


def _num_bytes(text: str) -> float:
    value, unit = text.split()
    return float(value) * _UNITS[unit]


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
