"""`drivetrain run`: `generate` where there is something to answer, `chat` where there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_rigs import Outcome, run_here, script_fake, type_in, without_settings

from drivetrain.cli import run
from drivetrain.cli.chat import command as chat

FAKE = ("fake", "--temperature", "0")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, typed: str = "") -> None:
    type_in(monkeypatch, typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)


@pytest.mark.parametrize("given", [("hi",), ("--message", "hi"), ("--prompt", "hi"), ("--system", "S", "hi"), ("-",)])
def test_with_a_message_it_is_generate(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    outcomes = list[Outcome]()
    for command in ("run", "generate"):
        at_a_terminal(monkeypatch, "hi")
        outcomes.append(run_here(capsys, command, *FAKE, *given))
    assert outcomes[0] == outcomes[1]
    assert (outcomes[0].code, outcomes[0].out) == (0, "The quick brown fox jumps over the lazy dog. \n")


def test_what_is_piped_in_is_one_message(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "several\nlines\n")
    outcome = run_here(capsys, "run", *FAKE, "--max-tokens", "3", "--json")
    assert outcome.json["choices"][0]["text"] == "The"
    type_in(monkeypatch, " \n")
    outcome = run_here(capsys, "run", *FAKE)
    assert (outcome.code, outcome.error[:26]) == (2, "there is nothing to answer")


def test_without_a_message_it_is_a_chat(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    script_fake(monkeypatch, reply=lambda request: bytes(i for i in request.prompt_ids if i < 256))
    at_a_terminal(monkeypatch, "one\n/reset\ntwo\n")
    outcome = run_here(capsys, "run", *FAKE, "--system", "Be brief.")
    assert outcome.code == 0
    assert re.findall(r"system\nBe brief.\nuser\n(\w+)\nassistant", outcome.out) == ["one", "two"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--json",), "--json is for one message"),
        (("--no-stream",), "--stream is for one message"),
        (("--image", "x.png"), "--image is for one message"),
        (("--receipt", "x.json"), "--receipt is for one message"),
        (("--n", "2"), "--n is for one message"),
        (("--logprobs", "1"), "--logprobs is for one message"),
        (("--system", "a", "--system", "b"), "--system can be given once"),
        (("--temperature", "9"), "temperature is 9.0"),
    ],
)
def test_what_a_chat_cannot_be_asked_is_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], words: str
) -> None:
    at_a_terminal(monkeypatch)
    outcome = run_here(capsys, "run", "fake", *flags)
    assert outcome.code == 2
    assert words in outcome.error


def test_it_has_the_options_of_generate() -> None:
    from drivetrain.cli.main import _parsers

    commands = _parsers()[1]
    assert [one.dest for one in commands["run"]._actions] == [one.dest for one in commands["generate"]._actions]
    assert commands["run"].get_default("run") is run.run is not chat.run
