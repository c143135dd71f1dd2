"""Help, version and usage errors: quick, light, and one line for what was asked wrongly."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest
from cli_rigs import run_apart, run_here

from drivetrain import __version__
from drivetrain.cli import main
from drivetrain.cli.help import SCREEN_COLUMNS, SCREEN_LINES

COMMANDS = (
    "run", "chat", "generate", "embed", "serve", "launch", "deploy", "ps", "stop", "pull", "list", "rm", "inspect",
    "doctor", "bench", "diff", "replay", "conform",
)  # fmt: skip
OTHER_NAMES = {"ls": "list", "show": "inspect"}
HEAVY = ("torch", "transformers", "numpy", "jinja2", "PIL", "asyncio", "huggingface_hub", "http", "ssl", "readline")
LATER = (
    "drivetrain.assembly.opening", "drivetrain.sync", "drivetrain.store", "drivetrain.worker.worker",
    "drivetrain.core.engine", "drivetrain.engines.base.channel",
)  # fmt: skip
OF_ENGINES = re.compile(r"drivetrain\.engines\.\w+\.(?!kind$|settings$)")
"""What an engine states of itself makes flags; all else of it is imported when a command needs it."""


@pytest.fixture(autouse=True)
def _a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))


def test_help_names_every_command_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    told = re.findall(r"^(?:[A-Z]\w+ +| +)([a-z]+)(?:, ([a-z]+))?  +\w", outcome.out, re.MULTILINE)
    assert [name for name, _ in told][: len(COMMANDS)] == list(COMMANDS)
    assert {other: name for name, other in told if other} == OTHER_NAMES
    assert re.findall(r"^([A-Z]\w+) ", outcome.out, re.MULTILINE)[:4] == ["Talk", "Serve", "Models", "Examine"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_on_a_screen(capsys: pytest.CaptureFixture[str], command: str) -> None:
    lines = run_here(capsys, *[command] * bool(command), "--help").out.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS


@pytest.mark.parametrize("command", COMMANDS)
def test_all_the_help_is_there_on_request(capsys: pytest.CaptureFixture[str], command: str) -> None:
    first, whole = run_here(capsys, command, "--help").out, run_here(capsys, command, "--help-all").out
    parser = main._parsers()[1][command]
    shown = {flag for one in parser._actions if one.help is not argparse.SUPPRESS for flag in one.option_strings}
    assert shown <= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", whole))
    assert (
        f"all {len([one for one in parser._actions if one.option_strings and one.help != argparse.SUPPRESS])} " in first
        or (first == whole)
    )


def test_help_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys, "help") == run_here(capsys, "--help")
    assert run_here(capsys, "help", "serve") == run_here(capsys, "serve", "--help")


@pytest.mark.parametrize("other", OTHER_NAMES)
def test_another_name_is_the_same_command(capsys: pytest.CaptureFixture[str], other: str) -> None:
    assert run_here(capsys, other, "--help") == run_here(capsys, OTHER_NAMES[other], "--help")


def test_no_command_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys) == run_here(capsys, "--help")
    assert run_here(capsys, "--debug").code == 0
    outcome = run_here(capsys, "--vers")
    assert outcome.code == 2
    assert "unknown option --vers; did you mean --version?" in outcome.error


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    outcome = run_here(capsys, command, "--help")
    assert outcome.code == 0
    assert not outcome.err
    assert f"examples:\n  drivetrain {command}" in outcome.out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"], ["nonsense"]])
def test_nothing_heavy_is_imported_before_a_command_runs(arguments: list[str]) -> None:
    text = (
        f"import sys\nfrom drivetrain.cli.main import main\nmain({arguments!r})\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not loaded & {*HEAVY, *LATER}
    assert not [name for name in loaded if OF_ENGINES.match(name)]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys, "--version").out == f"drivetrain {__version__}\n"


def test_python_m_drivetrain() -> None:
    outcome = run_apart("--version")
    assert (outcome.code, outcome.out) == (0, f"drivetrain {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serv"], "there is no command 'serv'; did you mean serve?"),
        (["remove", "x"], "there is no command 'remove'; did you mean rm?"),
        (["Embeddings"], "did you mean embed?"),
        (["x" * 10_000], "there is no command 'xxx"),
        (["run"], "MODEL"),
        (["run", "fake", "x", "--max-token", "3"], "unknown option --max-token; did you mean --max-tokens?"),
        (["serve", "fake", "-c", "4096"], "unknown option -c; here it is --context-length"),
        (["serve", "fake", "--max-model-len=4096"], "unknown option --max-model-len; here it is --context-length"),
        (["run", "fake", "x", "-ngl", "9"], "unknown option -ngl; here it is --gpu-layers"),
        (["serve", "fake", "--served-model-name", "x"], "here it is --name"),
        (["bench", "fake", "--html", "x"], "here it is --report"),
        (["serve", "fake", "--prot", "1"], "did you mean --port?"),
        (["generate"], "MODEL"),
        (["generate", "fake", "--message", "x", "--temprature", "0"], "did you mean --temperature?"),
        (["inspect", "fake", "more", "--message", "x"], "unexpected argument more"),
        (["generate", "fake", "--message", "x", "--top-k", "many"], "--top-k: 'many' is not a whole number"),
        (["generate", "fake", "--message", "x", "--top-p", "some"], "--top-p: 'some' is not a number"),
        (["generate", "fake", "--message", "x", "--logit-bias", "{"], "--logit-bias: '{' is not JSON"),
        (["generate", "fake", "--message", "x", "--vllm-args", "[" * 100_000], "is not JSON"),
        (["generate", "fake", "--message", "x", "--vllm-args", "[1]"], "--vllm-args: '[1]' is not a JSON object"),
        (["generate", "fake", "--message", "x", "--stop-token-ids", "1,b"], "'b' is not a whole number"),
        (["generate", "fake", "--message", "x", "--overflow", "wrap"], "--overflow: invalid choice"),
        (["generate", "fake", "--message", "x", "--max-run", "1"], "unknown option --max-run"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    outcome = run_here(capsys, *arguments)
    assert outcome.code == 2
    assert not outcome.out
    assert words in outcome.error
    assert "--help)" in outcome.error
