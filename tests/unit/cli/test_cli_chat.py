"""`drivetrain chat` with piped lines: what it says, remembers and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_rigs import Outcome, run_here, script_fake, type_in, without_settings

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import EngineFailed


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


class Chatter:
    """Pipes lines into a chat with a fake that answers «re:» and the last words of the user."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts: list[str] = []
        self.requests: list[EngineRequest] = []
        self.num_images: list[int] = []
        """Of each request when the engine got it: they are let go once it has told the prompt."""
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, lines: str, *arguments: str, **script: Any) -> Outcome:
        script_fake(self._monkeypatch, reply=self._reply, **script)
        type_in(self._monkeypatch, lines)
        return run_here(self._capsys, "chat", "fake", "--temperature", "0", *arguments)

    def _reply(self, request: EngineRequest) -> bytes:
        prompt = bytes(i for i in request.prompt_ids if i < 256).decode()
        self.requests.append(request)
        self.num_images.append(len(request.media.images) if request.media else 0)
        self.prompts.append(prompt)
        asked = prompt.rpartition("user\n")[2].partition("\nassistant")[0]
        if asked == "break":
            raise EngineFailed("it broke")
        return f"re:{asked}".encode()


@pytest.fixture
def chatter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chatter:
    return Chatter(capsys, monkeypatch)


def test_each_line_is_a_message_and_what_was_said_is_remembered(chatter: Chatter) -> None:
    outcome = chatter("one\n\n  \ntwo\n", "--system", "S")
    assert (outcome.code, outcome.out, outcome.err) == (0, "re:one\nre:two\n", "")
    assert chatter.prompts[1] == "system\nS\nuser\none\nassistant\nre:one\nuser\ntwo\nassistant\n"


def test_undo_reset_and_system(chatter: Chatter) -> None:
    outcome = chatter("one\n/undo\ntwo\n/system T\n/reset\nthree\n/system\nfour\n/reset\n/undo\n")
    assert outcome.code == 0
    assert outcome.err.splitlines() == [
        "(forgotten)", "(system message set)", "(a new chat)", "(no system message)", "(a new chat)",
        "(nothing to undo)",
    ]  # fmt: skip
    assert chatter.prompts == [
        "user\none\nassistant\n",
        "user\ntwo\nassistant\n",
        "system\nT\nuser\nthree\nassistant\n",
        "user\nthree\nassistant\nre:three\nuser\nfour\nassistant\n",
    ]


def test_set_changes_the_next_requests(chatter: Chatter) -> None:
    outcome = chatter(
        '/set\n/set max-tokens 2\n/set\none\n/set max_tokens\n/set ignore_eos true\n/set stop "e\\u006e"\nthen\n'
    )
    assert outcome.out == "re\nre:th\n"
    assert outcome.err.splitlines()[1:] == [
        "(max_tokens is 2)", "temperature 0.0", "max_tokens 2",
        "(cut off after 2 tokens; /set max_tokens N allows more)",
        "(max_tokens is back to its default)", "(ignore_eos is True)", "(stop is ['en'])",
    ]  # fmt: skip
    assert outcome.err.startswith("(nothing is set") or outcome.err.startswith("temperature 0.0")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature 9", "temperature is 9.0; it must be from 0 to 2"),
        ("/set temperature hot", "temperature: 'hot' is not a number"),
        ("/set ignore_eos perhaps", "ignore_eos: 'perhaps' is neither true nor false"),
        ("/set top_k 4", "top_k is not supported by this model"),
        ("/set n 2", "n is not a parameter of a chat"),
        ("/set logit_bias [", "logit_bias: '[' is not JSON"),
        ("/set stop " + "[" * 100_000, "stop is 100,000 characters"),
        ("/image cat.png", "this model does not support images"),
        ("/dance", "there is no command /dance; /help lists them"),
        ("break", "it broke"),
        ("x" * 5000, "prompt is too long"),
        ("a lone \udcff", "lone surrogate"),
    ],
)
def test_an_error_is_one_line_and_the_chat_goes_on(chatter: Chatter, line: str, words: str) -> None:
    outcome = chatter(f"{line}\nafter\n")
    assert outcome.code == 0
    assert outcome.out == "re:after\n"
    assert words in outcome.error
    assert chatter.prompts[-1] == "user\nafter\nassistant\n"


def test_slashes_and_many_lines(chatter: Chatter) -> None:
    outcome = chatter('//etc is a folder\n"""one\n\n  two\n"""\n"""all in one"""\n/exit\nnever\n')
    assert outcome.out == "re:/etc is a folder\nre:one\n\n  two\nre:all in one\n"
    assert len(chatter.prompts) == 3


def test_help_lists_the_commands(chatter: Chatter) -> None:
    outcome = chatter("/help\n/quit\n")
    assert chatter("/bye\nnever\n").out == outcome.out
    assert all(name in outcome.err for name in ("/image", "/system", "/set", "/undo", "/reset", "/exit", "/bye"))


def test_images_go_with_the_next_message_only(chatter: Chatter, tmp_path: Path) -> None:
    from PIL import Image

    picture, broken = tmp_path / "dot.png", tmp_path / "broken.png"
    Image.new("RGB", (2, 2), "red").save(picture)
    broken.write_bytes(b"no picture")
    outcome = chatter(f"/image {broken}\nbad\n/image nowhere.png\n/image\n/image {picture}\nlook\nagain\n", vision=True)
    assert outcome.code == 0
    assert chatter.num_images == [1, 1]
    notes = outcome.err.splitlines()
    assert "(1 for the next message)" in notes
    assert "(the images were dropped)" in notes
    assert any("cannot be decoded" in note for note in notes)
    assert "drivetrain: there is no image file 'nowhere.png'" in notes
    assert outcome.out.count("re:") == 2


def test_flags_are_the_first_parameters_and_are_checked_first(chatter: Chatter) -> None:
    outcome = chatter("one\n", "--max-tokens", "4")
    assert outcome.out == "re:o\n"
    outcome = chatter("one\n", "--top-p", "2")
    assert outcome.code == 2
    assert "top_p is 2.0" in outcome.error


def test_an_answer_without_text(chatter: Chatter) -> None:
    outcome = chatter("/set stop re\none\n/set stop\ntwo\n")
    assert "(no answer)" in outcome.err
    assert chatter.prompts[1] == "user\ntwo\nassistant\n"
