"""The coding agents that `drivetrain launch` runs, as their makers publish them on npm.

What a script says makes them write a file, read it and go on; a small model only answers, with a prompt that is short
enough for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from clients.conftest import PYTHON, Scripted

BIN = Path(__file__).parent / "npm" / "node_modules" / ".bin"
NO_CALLS_HOME = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "CONTINUE_TELEMETRY_ENABLED": "0",
}


PATIENCE_S = 600
"""A prompt of 5,000 tokens on one core that others use too."""

FEW = {"*": False, "read": True}
"""Of opencode's tools."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Words before the prompt: of a first turn, of one that goes on, and of one with a prompt for a small context."""

    package: str
    first: tuple[str, ...]
    again: tuple[str, ...]
    short: tuple[str, ...]


_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
AGENTS: Mapping[str, Turns] = {
    "claude": Turns(
        "@anthropic-ai/claude-code",
        ("--allowedTools=Write,Read", "-p"),
        ("--continue", "-p"),
        ("--tools=Read", "--system-prompt=Be brief.", "-p"),
    ),
    "codex": Turns(
        "@openai/codex",
        ("exec", *_CODEX),
        ("exec", "resume", "--last", *_CODEX),
        ("exec", *_CODEX, "-c", 'model_instructions_file="{folder}/brief.txt"'),
    ),
    "opencode": Turns("opencode-ai", ("run",), ("run", "--continue"), ("run",)),
    "qwen": Turns(
        "@qwen-code/qwen-code",
        ("--yolo", "-p"),
        ("--yolo", "--continue", "-p"),
        ("--bare", "--system-prompt=Be brief.", "-p"),
    ),
    "cn": Turns("@continuedev/cli", ("--auto", "-p"), ("--auto", "--resume", "-p"), ("-p",)),
}


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with an empty home and an empty folder to work in."""

    home: Path
    folder: Path

    def launch(self, agent: str, url: str, *words: str) -> str:
        """What it prints, once it has ended well."""
        variables = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self.home), "TERM": "dumb", "NO_COLOR": "1"}
        ran = subprocess.run(
            [PYTHON, "-m", "drivetrain", "launch", agent, "--url", url, "--force", "--", *words],
            cwd=self.folder,
            env={**variables, **NO_CALLS_HOME},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
        return ran.stdout


@pytest.fixture
def user(tmp_path: Path) -> User:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return User(tmp_path / "home", tmp_path / "work")


def refused(base: str) -> set[str]:
    """Each kind of request that was not answered well, and how often."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    posted = [line for line in lines if line.startswith('drivetrain_http_responses_total{method="POST"')]
    return {line for line in posted if 'status="200"' not in line}


SHOWN = "a file written and read by tool calls, and a second turn"


@pytest.mark.parametrize(
    "agent", [pytest.param(name, marks=pytest.mark.shows(turns.package, SHOWN)) for name, turns in AGENTS.items()]
)
def test_a_file_is_written_and_read(agent: str, scripted: Scripted, user: User) -> None:
    base, _ = scripted["agent"]
    before = refused(base)
    turns, note = AGENTS[agent], user.folder / "note.txt"
    said = user.launch(agent, base, *turns.first, f"Write the word heron into the file {note} and read it.")
    assert note.read_text().strip() == "heron"
    assert "The file says heron." in said
    said = user.launch(agent, base, *turns.again, "What did the file say?")
    assert "It said heron. That were 2 results." in said
    assert refused(base) == before


@pytest.mark.parametrize(
    "agent", [pytest.param(name, marks=pytest.mark.in_turn(place % 3)) for place, name in enumerate(AGENTS)]
)
@pytest.mark.parametrize("url", ["llamacpp"], indirect=True)
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_small_model_answers(agent: str, url: str, user: User) -> None:
    base = url.removesuffix("/v1")
    before = refused(base)
    (user.folder / "brief.txt").write_text("Be brief.")
    (user.folder / "opencode.json").write_text(json.dumps({"agent": {"build": {"prompt": "Be brief.", "tools": FEW}}}))
    user.launch(agent, base, *(word.format(folder=user.folder) for word in AGENTS[agent].short), "Say hello.")
    assert refused(base) == before
