"""The progress line: what a terminal sees, what a log sees, and that stdout sees nothing."""

from __future__ import annotations

import io

import pytest

from drivetrain.cli.terminal.progress import ProgressLine


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _line(*, is_tty: bool, quiet: bool = False) -> tuple[ProgressLine, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return ProgressLine(stream, is_tty, quiet, clock), stream, clock


def _last(stream: io.StringIO) -> str:
    return stream.getvalue().rpartition("\r")[2].removesuffix("\x1b[K")


def test_a_download_has_bar_bytes_rate_and_eta(capsys: pytest.CaptureFixture[str]) -> None:
    progress, stream, clock = _line(is_tty=True)
    progress("downloading toy (20.0 MB of 100.0 MB)", 0.2)  # an earlier run had fetched these
    clock.now = 10.0
    progress("downloading toy (60.0 MB of 100.0 MB)", 0.6)
    assert _last(stream) == "downloading toy [##############----------]   60%  60.0 MB of 100.0 MB  4.0 MB/s  ."[:79]
    progress.stream = wide = io.StringIO()
    clock.now = 20.0
    progress("downloading toy (80.0 MB of 100.0 MB)", 0.8)
    assert "80.0 MB of 100.0 MB  3.0 MB/s" in _last(wide)
    assert capsys.readouterr() == ("", "")


def test_the_eta_and_an_unknown_size() -> None:
    progress, stream, clock = _line(is_tty=False)
    progress("downloading toy (0 bytes of 9.0 kB)", 0.0)
    clock.now = 30.0
    progress("downloading toy (3.0 kB of 9.0 kB)", 1 / 3)
    assert stream.getvalue() == "downloading toy   33%  3.0 kB of 9.0 kB  100 bytes/s  eta 1:00\n"
    clock.now = 60.0
    progress("downloading other (3.0 MB)", None)
    assert stream.getvalue().splitlines()[-1] == "downloading other  3.0 MB"


def test_a_note_is_shown_at_once_and_stays() -> None:
    progress, stream, _ = _line(is_tty=True)
    progress("loading", None)
    progress("note: read this", None)
    progress("loading", None)
    assert stream.getvalue() == "\rloading …\x1b[K" + "\r\x1b[Knote: read this\n" + "\rloading …\x1b[K"
    for is_tty, quiet, expected in [(False, False, "note: read this\n"), (True, True, "")]:
        progress, stream, _ = _line(is_tty=is_tty, quiet=quiet)
        progress("note: read this", None)
        assert stream.getvalue() == expected


def test_loading_is_a_text() -> None:
    progress, stream, _ = _line(is_tty=True)
    progress("loading the weights", None)
    assert _last(stream) == "loading the weights …"


def test_a_terminal_is_drawn_seldom_and_left_clean() -> None:
    progress, stream, clock = _line(is_tty=True)
    with progress:
        for step in range(1000):
            clock.now = step / 1000
            progress(f"downloading toy ({step / 10:.1f} MB of 100.0 MB)", step / 1000)
        assert stream.getvalue().count("\r") <= 10
        assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    before = stream.getvalue()
    progress("too late", None)
    progress.close()
    assert stream.getvalue() == before


def test_a_log_gets_nothing_of_what_is_quick_and_a_line_now_and_then() -> None:
    progress, stream, clock = _line(is_tty=False)
    progress("loading", 0.1)
    clock.now = 1.0
    progress("loaded", 1.0)
    assert not stream.getvalue()
    for second in range(2, 26):
        clock.now = second
        progress(f"unpacking toy ({second}.0 MB of 50.0 MB)", second / 50)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("unpacking toy    4%")
    assert "\r" not in stream.getvalue()


def test_quiet_and_a_closed_stream() -> None:
    progress, stream, _ = _line(is_tty=True, quiet=True)
    progress("loading", None)
    assert not stream.getvalue()
    progress, stream, _ = _line(is_tty=True)
    stream.close()
    progress("loading", None)
    progress("more", None)
    progress.close()
