"""Help, version and usage errors: quick, light, and one line for what was asked wrongly."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from cli_rigs import run_apart, run_here

from drivetrain import __version__

COMMANDS = (
    "generate", "chat", "serve", "deploy", "bench", "conform", "diff", "inspect", "doctor", "pull", "list", "rm",
)  # fmt: skip
HEAVY = ("torch", "transformers", "numpy", "jinja2", "PIL", "asyncio", "huggingface_hub", "http", "ssl", "readline")
LATER = (
    "drivetrain.assembly.opening", "drivetrain.sync", "drivetrain.store", "drivetrain.worker.worker",
    "drivetrain.core.engine", "drivetrain.engines.base.channel",
)  # fmt: skip
OF_ENGINES = re.compile(r"drivetrain\.engines\.\w+\.(?!kind$|settings$)")
"""What an engine states of itself makes flags; all else of it is imported when a command needs it."""


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_here(capsys, "--help")
    assert outcome.code == 0
    assert not outcome.err
    assert set(re.findall(r"^    ([a-z]+) ", outcome.out, re.MULTILINE)) == set(COMMANDS)
    assert "examples:" in outcome.out


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
        (["serv"], "invalid choice: 'serv'"),
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
