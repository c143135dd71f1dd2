"""How many threads fit beside a neighbour, with readings of our own: no clock, no load."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivetrain.core.results import ComputeThreads
from drivetrain.engines.base import cores
from drivetrain.engines.base.cores import CoreTimes, process_time_of, read_core_times
from drivetrain.engines.base.thread_limit import BETWEEN_LINES_S, CALM_WINDOWS, WINDOW_S, ThreadLimit


class Machine:
    """Time passes when it is told to, with so many cores of it used by others."""

    def __init__(self, most: int = 2, cores: int = 2) -> None:
        self.at = 1000.0
        self.busy_s = self.own_s = 0.0
        self.readable = True
        self.looks = 0
        self.limit = ThreadLimit(most, cores=cores, read=self.read, clock=lambda: self.at)

    def read(self) -> CoreTimes | None:
        self.looks += 1
        return CoreTimes(self.busy_s, self.own_s) if self.readable else None

    def passes(self, seconds: float, *, foreign: float, own: float = 0.0) -> None:
        self.at += seconds
        self.own_s += own * seconds
        self.busy_s += (own + foreign) * seconds

    def computes(self, seconds: float, *, foreign: float, steps: int = 1) -> int:
        """In steps of equal length, with a look before each and one at the end."""
        for _ in range(steps):
            self.limit.look()
            self.passes(seconds / steps, foreign=foreign, own=self.limit.now)
        return self.limit.look()

    def run(self, seconds: float, *, foreign: float) -> None:
        """All of a piece of work, with no step longer than a tenth of a second."""
        self.limit.begin()
        self.computes(seconds, foreign=foreign, steps=max(1, round(seconds / 0.02)))
        self.limit.pause()


def test_alone_all_threads_compute() -> None:
    machine = Machine(4, 4)
    machine.limit.begin()
    assert machine.computes(10, foreign=0.2, steps=1000) == 4


def test_a_neighbour_is_noticed_after_one_window() -> None:
    machine = Machine()
    machine.limit.begin()
    assert machine.computes(WINDOW_S * 0.9, foreign=1, steps=9) == 2
    assert machine.computes(WINDOW_S * 0.2, foreign=1, steps=2) == 1


def test_threads_come_back_after_some_calm_windows() -> None:
    machine = Machine()
    machine.run(1, foreign=1)
    machine.limit.begin()
    for _ in range(CALM_WINDOWS - 1):
        assert machine.computes(WINDOW_S, foreign=0) == 1
    assert machine.computes(WINDOW_S, foreign=0) == 2


def test_one_reading_that_fails_is_tried_again() -> None:
    machine = Machine()
    machine.limit.begin()
    assert machine.computes(WINDOW_S * 2, foreign=1, steps=20) == 1
    machine.readable = False
    machine.computes(WINDOW_S, foreign=0, steps=10)
    looks = machine.looks
    machine.computes(WINDOW_S * 3, foreign=0, steps=300)
    assert machine.looks <= looks + 4, "it costs as much as one that is read"
    machine.readable = True
    assert machine.computes(WINDOW_S * (CALM_WINDOWS + 2), foreign=0, steps=100) == 2


def test_calm_must_be_in_a_row() -> None:
    machine = Machine()
    machine.run(1, foreign=1)
    machine.limit.begin()
    for _ in range(10):
        machine.computes(WINDOW_S * (CALM_WINDOWS - 1), foreign=0, steps=CALM_WINDOWS - 1)
        assert machine.computes(WINDOW_S, foreign=0.5) == 1


def test_between_the_two_shares_nothing_changes() -> None:
    machine = Machine()
    machine.limit.begin()
    assert machine.computes(3, foreign=0.5, steps=30) == 2
    assert machine.computes(WINDOW_S, foreign=1) == 1
    assert machine.computes(3, foreign=0.5, steps=30) == 1


@pytest.mark.parametrize(
    ("cores", "most", "foreign", "fit"),
    [
        (8, 8, 1, 7),
        (8, 8, 3, 5),
        (8, 8, 2.5, 6),
        (8, 8, 9, 1),
        (8, 4, 3, 4),
        (8, 4, 5, 3),
        (1, 1, 5, 1),
        (2, 4, 0.2, 4),
    ],
)
def test_each_core_that_is_taken_costs_a_thread(cores: int, most: int, foreign: float, fit: int) -> None:
    """Fewer threads than cores give way only when the rest of the cores is used up; more than cores stay if asked."""
    machine = Machine(most, cores)
    machine.limit.begin()
    assert machine.computes(WINDOW_S, foreign=foreign) == fit


def test_some_threads_come_back_when_some_neighbours_go() -> None:
    machine = Machine(8, 8)
    machine.run(1, foreign=6)
    assert machine.limit.now == 2
    machine.run(1, foreign=2)
    assert machine.limit.now == 6


def test_a_long_step_is_a_window_of_its_own() -> None:
    machine = Machine()
    machine.limit.begin()
    assert machine.computes(5, foreign=0.8) == 1


def test_a_server_that_takes_turns_with_this_one_is_no_neighbour() -> None:
    """It has all cores while we wait, and none while we compute."""
    machine = Machine()
    for length in (0.05, 0.3, 1, 3) * 5:
        machine.run(length, foreign=0.1)
        assert machine.limit.now == 2
        machine.passes(length, foreign=2)


def test_a_neighbour_beside_short_work_is_noticed() -> None:
    """No piece of work is as long as a window: they are added up, and what came between does not count."""
    machine = Machine()
    for _ in range(4):
        machine.run(WINDOW_S / 3, foreign=1)
        machine.passes(2, foreign=0.5)
    assert machine.limit.now == 1


def test_a_neighbour_who_stays_over_a_pause_is_not_forgotten() -> None:
    machine = Machine()
    machine.run(1, foreign=1)
    machine.passes(60, foreign=1)
    machine.limit.begin()
    assert machine.limit.look() == 1


def test_a_pause_without_anybody_clears() -> None:
    machine = Machine()
    machine.run(1, foreign=1)
    machine.passes(1, foreign=0.1)
    machine.limit.begin()
    assert machine.limit.look() == 2


def test_a_short_pause_proves_nothing() -> None:
    machine = Machine()
    machine.run(1, foreign=1)
    machine.passes(WINDOW_S / 2, foreign=0)
    machine.limit.begin()
    assert machine.limit.look() == 1


def test_where_the_times_are_not_known_nothing_changes() -> None:
    machine = Machine()
    machine.readable = False
    machine.run(5, foreign=2)
    assert machine.limit.threads == ComputeThreads(2, 2)
    machine.readable = True
    machine.run(1, foreign=2)
    assert machine.limit.now == 1
    machine.readable = False
    machine.run(1, foreign=0)
    assert machine.limit.now == 1


def test_the_cores_are_read_once_a_window() -> None:
    machine = Machine()
    machine.limit.begin()
    machine.computes(1, foreign=0, steps=1000)
    assert machine.looks <= 1 + round(1 / WINDOW_S)


def test_one_that_comes_and_goes_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level(logging.INFO):
        for _ in range(200):
            machine.run(0.5, foreign=2)
            assert machine.limit.now == 1
            machine.run(0.5, foreign=0)
            assert machine.limit.now == 2
    lines = [record.getMessage() for record in caplog.records]
    rounds = 200 // BETWEEN_LINES_S + 1
    assert lines[0] == "other processes keep the cores busy: computing with 1 threads of 2"
    assert lines[1] == "the cores are free again: computing with all 2 threads"
    assert 4 <= len(lines) <= 2 * rounds + 2
    assert lines == lines[:2] * (len(lines) // 2)


STAT = """cpu  1 1 1 1 1 1 1 1 1 1
cpu0 100 20 30 1000 7 4 5 6 50 0
cpu1 200 0 0 1000 0 0 0 0 0 0
cpu10 900 900 900 900 0 0 0 0 0 0
intr 5 6
"""


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the system's, in hundredths of a second; our cores are 0 and 1."""
    path = tmp_path / "stat"
    path.write_text(STAT)
    monkeypatch.setattr(cores, "_STAT", str(path))
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return path


def test_busy_is_all_but_waiting_and_counts_our_cores_only(stat: Path) -> None:
    assert read_core_times(lambda: 2.5) == CoreTimes(busy_s=1.65 + 2.0, own_s=2.5)


def gone() -> float:
    raise ProcessLookupError


@pytest.mark.parametrize("text", ["", "cpu  1 2 3\n", STAT.replace("cpu1 ", "cpu7 "), "\0\xff", "cpu0 1\ncpu1 1\n"])
def test_times_that_are_not_those_of_our_cores_are_not_known(stat: Path, text: str) -> None:
    stat.write_text(text, "utf-8")
    assert read_core_times(lambda: 0.0) is None


def test_without_the_file_or_the_process_nothing_is_known(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_core_times(gone) is None
    stat.unlink()
    assert read_core_times(lambda: 0.0) is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert read_core_times(lambda: 0.0) is None


@pytest.mark.skipif(sys.platform != "linux", reason="a clock of Linux")
def test_the_time_of_another_process_is_known_until_it_has_ended() -> None:
    assert process_time_of(os.getpid()) == pytest.approx(time.process_time(), abs=60)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert process_time_of(child.pid) >= 0
        child.communicate(b"\n")
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        process_time_of(child.pid)
