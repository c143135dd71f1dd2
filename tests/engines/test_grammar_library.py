"""The llguidance that is built into llama.cpp, which grammars are tried with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.engines.llamacpp.loading import library_file
from drivetrain.text.grammar.rehearsal import TOO_LARGE_THERE, EngineLibrary
from drivetrain.text.grammar.trial import TRIES, Trial


@pytest.fixture(scope="module")
def file() -> Path:
    found = library_file()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def trial(file: Path) -> Iterator[Trial]:
    made = Trial(file)
    yield made
    made.close()


def test_it_has_the_interface(file: Path) -> None:
    library = EngineLibrary(file)
    assert library.fault_of('start: "ab" | "ac"', [*b"ac"]) == ""
    assert "unknown name" in library.fault_of("start: nothing", [])
    assert library.fault_of('start: "ab"', [*b"xy"]) == "", "what it does not allow is not followed"


def test_what_is_cheap_in_ours_and_not_in_it(trial: Trial) -> None:
    """Ours has no rule for each of the items."""
    own = Trial()
    try:
        for grammar in ('{"type": "array", "maxItems": 1000000}', '{"type": "array", "minItems": 1000000000}'):
            assert own.run(f"start: %json {grammar}") == ""
            assert "compile" in trial.run(f"start: %json {grammar}")
    finally:
        own.close()
    assert trial.run('start: %json {"type": "array", "maxItems": 100}') == ""
    assert "MiB" in TOO_LARGE_THERE


def test_a_process_that_is_killed_as_it_starts_does_not_take_it_along(file: Path) -> None:
    trial, killed = Trial(file), 0

    def kill_all_but_the_last() -> None:
        nonlocal killed
        seen: set[int] = set()
        while killed < TRIES - 1:
            for process in trial.processes:
                if process.pid not in seen:
                    seen.add(process.pid)
                    process.kill()
                    killed += 1

    killing = threading.Thread(target=kill_all_but_the_last)
    killing.start()
    try:
        assert "compile" in trial.run('start: %json {"type": "array", "maxItems": 1000000}')
        assert killed == TRIES - 1
    finally:
        killing.join()
        trial.close()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "some.so"
    file.write_bytes(b"\x7fELF")
    trial = Trial(file)
    try:
        assert trial.run('start: "a"') == ""
    finally:
        trial.close()
