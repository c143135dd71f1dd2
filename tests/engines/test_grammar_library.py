"""The llguidance that is built into llama.cpp, which grammars are tried with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.engines.llamacpp.loading import library_file
from drivetrain.text.grammar.rehearsal import TOO_LARGE_THERE, EngineLibrary
from drivetrain.text.grammar.trial import Trial


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


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "some.so"
    file.write_bytes(b"\x7fELF")
    trial = Trial(file)
    try:
        assert trial.run('start: "a"') == ""
    finally:
        trial.close()
