"""Structured output from the command line: a flag for each form, and errors that name the flag."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_rigs import run_here, type_in, without_settings

ASK = ("generate", "fake", "--message", "hi", "--max-tokens", "100")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    Path("door.json").write_text(
        '{"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}'
    )
    Path("yes.gbnf").write_text('root ::= "yes" | "no"\n')
    Path("broken.json").write_text('{"type": ')
    Path("odd.json").write_text('{"not": {}}')
    Path("latin").write_bytes(b"\xe9")


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (("--json-schema", "door.json"), {'{"open": true}', '{"open": false}', '{"open":true}', '{"open":false}'}),
        (("--json-object",), {"{}"}),
        (("--regex", "[x-z]{3}"), {a + b + c for a in "xyz" for b in "xyz" for c in "xyz"}),
        (("--choice", "left", "--choice", "right"), {"left", "right"}),
        (("--grammar", "yes.gbnf"), {"yes", "no"}),
    ],
)
def test_each_form(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], texts: set[str]) -> None:
    done = run_here(capsys, *ASK, *flags)
    assert done.code == 0, done.err
    assert done.out.removesuffix("\n") in texts
    document = run_here(capsys, *ASK, *flags, "--json").json
    assert document["choices"][0]["text"] == done.out.removesuffix("\n")
    assert document["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--json-schema", "missing.json"), "argument --json-schema: missing.json cannot be read: No such file"),
        (("--grammar", "latin"), "argument --grammar: latin is not UTF-8 text"),
        (("--json-schema", "."), "argument --json-schema: . cannot be read"),
        (("--json-schema", "broken.json"), "--json-schema must be a JSON schema, which is an object; it is not JSON"),
        (("--json-schema", "odd.json"), "--json-schema has no value that satisfies it"),
        (("--regex", ""), "--regex is an empty string"),
        (("--regex", "["), "--regex cannot be honoured: "),
        (("--choice", ""), "--choice[0] is an empty string"),
        (("--grammar", "door.json"), "--grammar cannot be honoured: "),
        (("--regex", "a" * 20, "--max-constraint-chars", "10"), "--regex is 20 characters; the limit is 10"),
        (("--regex", "a", "--choice", "b"), "argument --choice: not allowed with argument --regex"),
    ],
)
def test_an_error_names_its_flag(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str) -> None:
    done = run_here(capsys, *ASK, *flags)
    assert done.code == 2
    assert not done.out
    assert words in done.err


def test_explain_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, *ASK, "--choice", "a", "--choice", "b", "--explain", "--json")
    assert done.json["request"]["constraint"]["value"] == {"choice": ["a", "b"]}


def test_in_a_chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["one", '/set constraint {"choice": ["right"]}', "two", '/set constraint {"regex": "["}', "three"]
    type_in(monkeypatch, "\n".join([*lines, '/set constraint {"choices": []}', ""]))
    done = run_here(capsys, "chat", "fake", "--choice", "left")
    assert done.out.split() == ["left", "right"]
    assert "drivetrain: constraint cannot be honoured: " in done.err
    assert "constraint must be a map with one of json_schema, json, regex, choice, grammar" in done.err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("generate", "chat"):
        text = run_here(capsys, command, "--help-all").out
        for flag in ("--json-schema FILE", "--json-object", "--regex PATTERN", "--choice TEXT", "--grammar FILE"):
            assert flag in text
        assert "--json-schema door.json" in text
        assert "--constraint" not in text
