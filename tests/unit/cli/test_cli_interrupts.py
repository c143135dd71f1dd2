"""Ctrl-C, SIGTERM and closed pipes, with real signals to real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from cli_rigs import SLOW_FAKE, read_some, slow_chatterbox

from drivetrain.cli.terminal.interrupts import Interrupts, Terminated

GENERATE = ("generate", "fake", "--message", "hi", "--temperature", "0")
CHAT = ("chat", "fake", "--temperature", "0")


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("output", ["--stream", "--json"])
def test_a_signal_ends_generate_and_frees_everything(
    number: signal.Signals, code: int, words: str, output: str
) -> None:
    with slow_chatterbox(*GENERATE, output, "--request-id", "announced") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"answering\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert process.returncode == code
        assert err.decode().splitlines() == [f"drivetrain: {words}", "active 0 loop None"]


def test_a_reader_that_has_enough_ends_it_silently() -> None:
    with slow_chatterbox(*GENERATE) as process:
        read_some(process, 12)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=20) == 141
        assert process.stderr.read().decode().splitlines() == ["active 0 loop None"]


@pytest.mark.parametrize(
    "arguments", [GENERATE, ("--help",), ("--version",), (), ("generate", "--help"), ("generate", "--help-all")]
)
def test_a_full_disk_is_told(arguments: Sequence[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "drivetrain", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == "drivetrain: cannot write the output: No space left on device\n"


def test_closed_streams_do_not_crash_it() -> None:
    command = f"{sys.executable} -m drivetrain {' '.join(GENERATE)} >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=60, check=False).returncode == 0


def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    with slow_chatterbox(*CHAT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        read_some(process, 12)
        process.send_signal(signal.SIGINT)
        rest = b""
        while not rest.endswith(b"\n"):
            rest += process.stdout.read(1)
        process.stdin.write(b"/set max_tokens 3\ntwo\n")
        assert read_some(process, 4) == b"The\n"
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert err.decode().splitlines() == [
            "(stopped)", "(max_tokens is 3)", "(cut off after 3 tokens; /set max_tokens N allows more)",
            "active 0 loop None",
        ]  # fmt: skip


def test_sigterm_ends_the_chat() -> None:
    with slow_chatterbox(*CHAT) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        read_some(process, 12)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 143
        assert err.decode().splitlines()[-1] == "active 0 loop None"


class Terminal:
    """A chat at a pseudo-terminal: what a person would see and type."""

    def __init__(self) -> None:
        pty = pytest.importorskip("pty")
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # the child becomes the chat
            os.execv(sys.executable, [sys.executable, "-c", SLOW_FAKE, *CHAT])
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def press_ctrl_c(self) -> None:
        """A while after the last key: the readline loop of Python sees a signal only while it waits for one."""
        time.sleep(0.5)
        self.type("\x03")

    def wait_for(self, what: str, timeout_s: float = 20.0) -> str:
        """Read until it is seen; returns what came."""
        start, deadline = len(self.seen), time.monotonic() + timeout_s
        while what not in self.seen[start:]:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._fd], [], [], 0.1)[0]:
                self.seen += os.read(self._fd, 4096).decode("utf-8", "replace")
        return self.seen[start:]

    def exit_code(self) -> int:
        try:
            while os.read(self._fd, 4096):
                pass
        except OSError:  # the other side is gone
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_chat_at_a_terminal() -> None:
    terminal = Terminal()
    assert "fake on fake" in terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("The quick")
    terminal.press_ctrl_c()
    terminal.wait_for("(stopped)\r\n> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.press_ctrl_c()
    assert "leaves" not in terminal.wait_for("> ")  # it only threw the line away
    terminal.press_ctrl_c()
    terminal.wait_for("(press Ctrl-C again or Ctrl-D to leave)\r\n> ")
    terminal.press_ctrl_c()
    assert terminal.exit_code() == 0


def test_ctrl_d_leaves_the_chat() -> None:
    terminal = Terminal()
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0


def test_the_first_signal_raises_and_one_too_many_leaves_at_once() -> None:
    left: list[int] = []
    with Interrupts(leave=left.append):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert left == [130]
    with Interrupts(spare=1, leave=left.append) as interrupts:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            interrupts.reset()
        assert left == [130]
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert left == [130, 143]


class Leaving:
    """Is signalled while it is freed, where Python drops exceptions."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_whose_exception_is_dropped_comes_again(number: signal.Signals, raised: type[BaseException]) -> None:
    left: list[int] = []
    before = sys.unraisablehook
    with Interrupts(leave=left.append):
        with pytest.raises(raised):
            Leaving(number)
            time.sleep(20)
        assert left == []  # it counts once
    assert sys.unraisablehook is before


def test_another_dropped_exception_is_told() -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ValueError("while it is freed")

    told: list[str] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda dropped: told.append(str(dropped.exc_value))
    try:
        with Interrupts():
            Faulty()
    finally:
        sys.unraisablehook = before
    assert told == ["while it is freed"]


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
