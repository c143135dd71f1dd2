"""Ways to run a command in a test: in this process, in one of its own, and with a fake that has a script."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from drivetrain import assembly
from drivetrain.cli.main import main
from drivetrain.cli.terminal import progress
from drivetrain.engines.base.kind import EntryPoints
from drivetrain.engines.fake import FakeEngine, scripted

SLOW_FAKE = """
import dataclasses, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test runner in the background ignores it
from drivetrain import assembly
from drivetrain.cli.main import main
from drivetrain.engines.base.kind import EntryPoints
from drivetrain.engines.fake import scripted
engines = []
def reply(request):
    if request.request_id == "announced":
        print("answering", file=sys.stderr, flush=True)
    return b"The quick brown fox jumps over the lazy dog. "
def make():
    engines.append(scripted(reply=reply, repeat=True, step_delay_s=0.01))
    return engines[-1]
enter = lambda: EntryPoints(make=make)
assembly.ENGINES["fake"] = dataclasses.replace(assembly.ENGINES["fake"], enter=enter)
code = main(sys.argv[1:])
print(f"active {engines[-1].health().active} loop {engines[-1]._loop_task}", file=sys.stderr)
sys.exit(code)
"""
"""A program that is `drivetrain`, with a fake that talks slowly and for ever, and that says at the end what is left."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of a failure."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("drivetrain: "), self.err
        return lines[0].removeprefix("drivetrain: ")


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    """In this process."""
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return Outcome(code, captured.out, captured.err)


def run_apart(*arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> Outcome:
    """In a process of its own, as a user's shell would."""
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, **(environment or {})},
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def slow_chatterbox(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`SLOW_FAKE` with these arguments, running, with pipes on all sides."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_FAKE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_some(process: subprocess.Popen[bytes], num_bytes: int) -> bytes:
    """At least so many bytes of its stdout."""
    assert process.stdout is not None
    data = b""
    while len(data) < num_bytes:
        piece = process.stdout.read(num_bytes - len(data))
        assert piece, data
        data += piece
    return data


def type_in(monkeypatch: pytest.MonkeyPatch, data: str | bytes) -> None:
    """What stdin of this process holds from now on."""
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


def script_fake(monkeypatch: pytest.MonkeyPatch, **script: Any) -> list[FakeEngine]:
    """Let the model `fake` follow a script; the engines that are made of it, as they are made."""
    return script_fakes(monkeypatch, script)


def script_fakes(monkeypatch: pytest.MonkeyPatch, *scripts: dict[str, Any]) -> list[FakeEngine]:
    """Each fake that is made takes the next script; the engines, as they are made."""
    left, made = itertools.cycle(scripts), list[FakeEngine]()

    def make() -> FakeEngine:
        made.append(scripted(**next(left)))
        return made[-1]

    monkeypatch.setitem(
        assembly.ENGINES, "fake", replace(assembly.ENGINES["fake"], enter=lambda: EntryPoints(make=make))
    )
    return made


def without_settings(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No DRIVETRAIN_ variable of the machine, a store of our own, and no line that only a slow machine would print."""
    monkeypatch.setattr(progress, "APPEND_AFTER_S", math.inf)
    for name in list(os.environ):
        if name.startswith("DRIVETRAIN_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DRIVETRAIN_HOME", str(home))
