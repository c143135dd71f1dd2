"""Tools and reasoning from the command line: the flags, and how an answer with calls is printed."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.cli.generate import result_document
from drivetrain.cli.terminal.answers import AnswerPrinter, print_choice
from drivetrain.core.answer import (
    AnswerEvent,
    AnswerMessage,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ContentPiece,
    Flaw,
    ReasoningPiece,
    ToolCall,
)
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, Metrics, Result, Usage

ASK = ("generate", "fake", "--message", "hi", "--max-tokens", "5")
TOOLS = [{"type": "function", "function": {"name": "clock"}}, {"type": "function", "function": {"name": "door"}}]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    Path("tools.json").write_text(json.dumps(TOOLS))
    Path("odd.json").write_text(json.dumps([*TOOLS, {"type": "function", "function": {"name": "a b"}}]))
    Path("object.json").write_text("{}")
    Path("broken.json").write_text("[")


@pytest.mark.parametrize(
    ("what", "meant"),
    [
        ("auto", {"mode": "auto", "names": []}),
        ("none", {"mode": "none", "names": []}),
        ("required", {"mode": "required", "names": []}),
        ("door", {"mode": "required", "names": ["door"]}),
        ('{"type": "function", "function": {"name": "door"}}', {"mode": "required", "names": ["door"]}),
    ],
)
def test_the_flags_are_the_request(capsys: pytest.CaptureFixture[str], what: str, meant: dict[str, object]) -> None:
    from drivetrain.cli.flags.request_options import read_value
    from drivetrain.cli.terminal.values import plain
    from drivetrain.core.request import GenerateRequest

    made = GenerateRequest(tools=read_value("tools", "tools.json"), tool_choice=read_value("tool_choice", what))
    assert [tool.name for tool in made.tools or ()] == ["clock", "door"]
    assert plain(made.tool_choice) == meant
    flags = ("--tools", "tools.json", "--tool-choice", what, "--no-parallel-tool-calls", "--reasoning-effort", "low")
    more = ("--chat-template-kwargs", '{"enable_thinking": false}', "--max-reasoning-tokens", "9", "--json")
    given = run_here(capsys, *ASK, *flags, *more, "--explain").json["request"]
    assert given["tools"]["value"] == TOOLS
    assert given["parallel_tool_calls"]["value"] is False
    assert given["chat_template_kwargs"]["value"] == {"enable_thinking": False}
    assert (given["reasoning_effort"]["value"], given["max_reasoning_tokens"]["value"]) == ("low", 9)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tools", "missing.json"), "argument --tools: missing.json cannot be read: No such file"),
        (("--tools", "broken.json"), "argument --tools: broken.json is not JSON"),
        (("--tools", "object.json"), "argument --tools: object.json must hold a JSON list of tools"),
        (("--tools", "odd.json"), "tools[2].function.name is 'a b'; it must be up to 128 letters"),
        (
            ("--tools", "tools.json", "--tool-choice", "window"),
            "tool_choice names 'window', which is none of the tools",
        ),
        (("--tool-choice", "required"), "tool_choice asks for a call, but there are no tools"),
        (("--tools", "tools.json", "--tool-choice", "{"), "argument --tool-choice: '{' is not JSON"),
        (("--chat-template-kwargs", "[]"), "argument --chat-template-kwargs: '[]' is not a JSON object"),
        (("--tools", "tools.json", "--max-tools", "1"), "tools is 2 entries; the limit is 1"),
    ],
)
def test_what_is_wrong(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str) -> None:
    failed = run_here(capsys, *ASK, *flags)
    assert failed.code != 0
    assert failed.error.startswith(words)


def test_a_chat_has_nobody_to_run_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown option --tools" in run_here(capsys, "chat", "fake", "--tools", "tools.json").error
    assert "--max-reasoning-tokens" in run_here(capsys, "chat", "--help-all").out


def message(parts: Sequence[AnswerEvent]) -> AnswerMessage:
    from drivetrain.text.answers.parser import MessageBuilder

    builder = MessageBuilder()
    for part in parts:
        builder.add(part)
    return builder.message()


def call(index: int, name: str, arguments: str, flaw: Flaw | None = None, raw: str | None = None) -> list[AnswerEvent]:
    return [CallBegun(index, name, f"call_{index}"), ArgumentsPiece(index, arguments), CallEnded(index, flaw, raw)]


def line(index: int, name: str, arguments: str) -> str:
    function = {"name": name, "arguments": arguments}
    return json.dumps({"id": f"call_{index}", "type": "function", "function": function}) + "\n"


SHOWN: list[tuple[list[AnswerEvent], str]] = [
    ([], "\n"),
    ([ContentPiece("one "), ContentPiece("two")], "one two\n"),
    ([ReasoningPiece("hm"), ContentPiece("yes")], "yes\n"),
    ([ReasoningPiece("hm")], "\n"),
    (call(0, "f", '{"a": "\n"}'), line(0, "f", '{"a": "\n"}')),
    (
        [ContentPiece("now"), *call(0, "f", "{}"), *call(1, "g", "{}")],
        "now\n" + line(0, "f", "{}") + line(1, "g", "{}"),
    ),
    (call(0, "f", '{"a', Flaw.CUT_OFF, "<f"), line(0, "f", '{"a')),
    ([ContentPiece("x"), *call(0, "", "", Flaw.CUT_OFF, "<tool_call>{")], "x\n"),
    ([ContentPiece("x"), *call(0, "", "", Flaw.MALFORMED, "<tool_call>")], "x\n<tool_call>\n"),
]


@pytest.mark.parametrize(("parts", "shown"), SHOWN, ids=range(len(SHOWN)))
def test_what_stdout_gets(capsys: pytest.CaptureFixture[str], parts: list[AnswerEvent], shown: str) -> None:
    """As it comes or at once, and without a terminal nothing of the reasoning."""
    for cut in (1, 99):
        printer = AnswerPrinter()
        for at in range(0, len(parts), cut):
            printer.take(Delta(0, "never shown", parts=tuple(parts[at : at + cut])))
        printer.finish()
        assert capsys.readouterr() == (shown, "")
    print_choice(Choice(0, "never shown", message=message(parts)))
    assert capsys.readouterr() == (shown, "")


def test_an_answer_that_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    printer = AnswerPrinter()
    for text in ("<think>", "", "x"):
        printer.take(Delta(0, text))
    printer.finish()
    assert capsys.readouterr().out == "<think>x\n"
    assert printer.content == "<think>x"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_reasoning_dimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, with a blank line behind it; the model cannot write control characters there."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    printer = AnswerPrinter()
    pieces: list[AnswerEvent] = [ReasoningPiece("h\x1b[31m"), ReasoningPiece("m"), ContentPiece("yes")]
    for piece in pieces:
        printer.take(Delta(0, "", parts=(piece,)))
    printer.finish()

    def seen() -> str:
        return screen.getvalue().replace("\x1b[0m\x1b[2m", "")

    assert seen() == "\x1b[2mh\\x1b[31mm\n\n\x1b[0myes\n"
    assert printer.content == "yes"
    screen.seek(0)
    screen.truncate()
    print_choice(Choice(0, "", message=message(pieces)))
    assert seen() == "\x1b[2mh\\x1b[31mm\n\n\x1b[0myes\n"


def test_reasoning_alone_is_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    printer = AnswerPrinter()
    printer.take(Delta(0, "", parts=(ReasoningPiece("hm"),)))
    assert (printer.started, printer.content) == (True, "")


def test_the_json_has_the_message() -> None:
    told = AnswerMessage("x", "hm", (ToolCall(0, "f", "{}", id="call_0"),))
    document = result_document(Result("r", "m", (Choice(0, "x", message=told), Choice(1, "y")), Usage(), Metrics()))
    first, second = document["choices"]
    assert first["message"] == {
        "content": "x",
        "reasoning": "hm",
        "tool_calls": [{"index": 0, "name": "f", "arguments": "{}", "flaw": None, "raw": None, "id": "call_0"}],
        "extra": {},
    }
    assert "message" not in second
