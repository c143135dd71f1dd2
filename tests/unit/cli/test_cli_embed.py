"""`drivetrain embed`: texts from the command line and from stdin, as lines of JSON and as one object."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import Outcome, run_here, type_in, without_settings

from drivetrain.cli.embed import TEXTS_AT_ONCE

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    assert (outcome.code, outcome.err) == (0, "")
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_a_line_for_each_text(capsys: Capture) -> None:
    first, second = rows(run_here(capsys, "embed", "fake", "a cat", "ein Hündchen"))
    assert (first["index"], first["text"], second["index"], second["text"]) == (0, "a cat", 1, "ein Hündchen")
    assert math.isclose(sum(x * x for x in first["embedding"]), 1, rel_tol=1e-5)
    assert first["embedding"] != second["embedding"]


def test_texts_behind_an_option(capsys: Capture) -> None:
    document = run_here(capsys, "embed", "fake", "--json", "a", "b").json
    assert [row["text"] for row in document["data"]] == ["a", "b"]
    assert rows(run_here(capsys, "embed", "--quiet", "fake", "a"))[0]["text"] == "a"
    assert "unknown option --quit; did you mean --quiet?" in run_here(capsys, "embed", "fake", "--quit", "a").error


def test_behind_two_dashes_nothing_is_an_option(capsys: Capture) -> None:
    for options in ((), ("--json",)):
        outcome = run_here(capsys, "embed", "fake", *options, "--", "-a", "--b")
        found = outcome.json["data"] if options else rows(outcome)
        assert [row["text"] for row in found] == ["-a", "--b"]


@pytest.mark.parametrize("arguments", [("-",), ("--quiet", "-"), ("--quiet", "--", "-"), ("--quiet", "--")])
def test_a_dash_is_stdin(capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    type_in(monkeypatch, "eins\nzwei")
    assert [row["text"] for row in rows(run_here(capsys, "embed", "fake", *arguments))] == ["eins", "zwei"]


def test_a_dash_among_texts_is_refused(capsys: Capture) -> None:
    outcome = run_here(capsys, "embed", "fake", "a", "-")
    assert (outcome.code, outcome.error) == (2, "- reads the texts from stdin; leave the others out")


def test_json_is_one_object_with_the_usage(capsys: Capture) -> None:
    document = run_here(capsys, "embed", "fake", "a", "bc", "--json").json
    assert set(document) == {"model", "pooling", "data", "usage"}
    assert [row["index"] for row in document["data"]] == [0, 1]
    alone = [run_here(capsys, "embed", "fake", text, "--json").json["usage"]["prompt_tokens"] for text in ("a", "bc")]
    assert document["usage"]["prompt_tokens"] == sum(alone) > 0


def test_lines_of_stdin_blank_ones_left_out(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "eins\r\n\n  \nzwei")
    assert [row["text"] for row in rows(run_here(capsys, "embed", "fake"))] == ["eins", "zwei"]


def test_more_lines_than_one_request_may_have(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (TEXTS_AT_ONCE, 3):
        texts = [f"text {i}" for i in range(2 * limit + 1)]
        type_in(monkeypatch, "\n".join(texts))
        found = rows(run_here(capsys, "embed", "fake", "--max-embed-inputs", str(limit)))
        assert [(row["index"], row["text"]) for row in found] == list(enumerate(texts))
        type_in(monkeypatch, "\n".join(texts))
        document = run_here(capsys, "embed", "fake", "--max-embed-inputs", str(limit), "--json").json
        assert document["data"] == found


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ((), b"", "there is nothing to embed: stdin has no text"),
        ((), b" \n\n", "there is nothing to embed: stdin has no text"),
        ((), b"good\n\xff\n", "a line of stdin is not UTF-8 text"),
        ((), b"x" * 50, "more than 40 bytes"),
        (("",), b"", "input[0] must be a string or token ids, and not empty"),
        (("x" * 11,), b"", "input[0] has 11 characters; the limit is 10"),
        (("bad \udcff byte",), b"", "lone surrogate"),
        (("x", "--temperature", "0"), b"", "unknown option --temperature"),
    ],
)
def test_what_cannot_be_embedded_exits_2(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], stdin: bytes, words: str
) -> None:
    type_in(monkeypatch, stdin)
    limit = ("--max-prompt-chars", "10") if b"good" not in stdin and "bad" not in str(arguments) else ()
    outcome = run_here(capsys, "embed", "fake", *arguments, *limit)
    assert outcome.code == 2
    assert words in outcome.error
    assert not outcome.out


def test_at_a_terminal_it_waits_for_nothing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    outcome = run_here(capsys, "embed", "./no-such-model")
    assert (outcome.code, outcome.error) == (2, "there is nothing to embed: give TEXT, or pipe in lines")


def test_explain(capsys: Capture) -> None:
    outcome = run_here(capsys, "embed", "./no-such-model", "--explain", "--pooling", "cls")
    assert outcome.code == 0
    assert "'cls'  (flag or keyword)" in outcome.out
