"""`drivetrain launch`: what an agent is given, before real servers. The agents here only tell how they were run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.cli.launch.clients import CLIENTS
from server.fleet_serving import fake_offer, serving_fleet
from server.serving import fake, serving

Capture = pytest.CaptureFixture[str]

AGENT = """#!{python}
import json, os, pathlib, sys, urllib.request
told = {{"argv": sys.argv[1:], "env": dict(os.environ)}}
if "--config" in sys.argv:
    told["config"] = json.loads(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
if "--ask" in sys.argv:
    with urllib.request.urlopen(os.environ["ANTHROPIC_BASE_URL"] + "/v1/models") as answer:
        told["models"] = json.load(answer)
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps(told))
sys.exit(7 if "--fail" in sys.argv else 0)
"""


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the agent tells."""
    without_settings(monkeypatch, tmp_path / "home")
    folder = tmp_path / "bin"
    folder.mkdir()
    for client in CLIENTS.values():
        program = folder / client.program
        program.write_text(AGENT.format(python=sys.executable))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3] / "src"), prepend=os.pathsep)
    return tmp_path / "told.json"


def heard(told: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.read_text())
    return found


@pytest.mark.parametrize("name", CLIENTS)
def test_an_agent_is_given_the_address_the_key_and_the_model(
    capsys: Capture, told: Path, tmp_path: Path, name: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("our-key\n")
    with serving(fake(context_length=200_000), api_keys=("our-key",)) as served:
        outcome = run_here(
            capsys, "launch", name, "--url", served.base, "--api-key-file", str(keys), "--", "-p", "two words"
        )
    assert (outcome.code, outcome.err) == (0, "")
    given = heard(told)
    assert given["argv"][-2:] == ["-p", "two words"]
    new = {key: value for key, value in given["env"].items() if os.environ.get(key) != value}
    said = json.dumps([given["argv"], new, given.get("config")])
    for needed in (served.base.removesuffix("/v1"), "our-key", served.model):
        assert needed in said
    assert ("200000" in said) == (name in ("codex", "opencode", "cn"))


def test_what_is_printed_runs_it_too(capsys: Capture, told: Path, tmp_path: Path) -> None:
    """The key is named by where it comes from."""
    keys = tmp_path / "the keys"
    keys.write_text("# mine\nour-key\n")
    with serving(fake(), api_keys=("our-key",)) as served:
        for name in CLIENTS:
            access = ("--url", served.base, "--api-key-file", str(keys))
            printed = run_here(capsys, "launch", name, *access, "--print", "--", "it's")
            assert printed.code == 0
            assert "our-key" not in printed.out
            assert not told.exists()
            subprocess.run(["sh", "-ec", printed.out], cwd=tmp_path, check=True)
            given = heard(told)
            assert given["argv"][-1] == "it's"
            assert "our-key" in json.dumps([given["env"], given.get("config")])
            told.unlink()


def test_nothing_is_started_to_be_printed(capsys: Capture, told: Path) -> None:
    printed = run_here(capsys, "launch", "claude", "a b", "--print")
    assert printed.code == 0
    start, _, *lines = printed.out.splitlines()
    assert start == "drivetrain serve 'a b' --context-length 32768 --max-repetitions 40"
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8000" in lines
    assert lines[-1] == "claude"


def test_a_key_of_somebody_else_is_not_sent_to_our_server(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, told: Path
) -> None:
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"):
        monkeypatch.setenv(name, "theirs")
    with serving(fake(context_length=200_000)) as served:
        assert run_here(capsys, "launch", "claude", "--url", served.base).code == 0
        assert not {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} & set(heard(told)["env"])
        for flag in ("--engine", "--context-length"):
            refused = run_here(capsys, "launch", "claude", "--url", served.base, flag, "9")
            assert (refused.code, f"{flag} is for a server that is started" in refused.err) == (2, True)


def test_a_server_is_started_and_ends_with_the_agent(capsys: Capture, told: Path) -> None:
    """On a port of its own, and it ends loops. The exit code is the agent's."""
    outcome = run_here(capsys, "launch", "claude", "fake", "--force", "--", "--ask", "--fail")
    assert outcome.code == 7
    given = heard(told)
    assert [model["id"] for model in given["models"]["data"]] == ["fake"]
    address = given["env"]["ANTHROPIC_BASE_URL"]
    assert run_here(capsys, "ps", address).code == 1


def test_a_server_that_cannot_start_says_why(capfd: Capture, told: Path) -> None:
    outcome = run_here(capfd, "launch", "claude", "/no/such/model")
    assert outcome.code == 1
    assert "/no/such/model" in outcome.err
    assert "the server ended with the exit code" in outcome.err
    assert not told.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vi"], "invalid choice"),
        (["claude", "--url", "http://127.0.0.1:1"], "cannot be reached"),
        (["claude"], "cannot be reached"),
        (["claude", "--context-length", "x"], "--context-length"),
    ],
)
def test_what_is_refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.setenv("DRIVETRAIN_PORT", "1")
    outcome = run_here(capsys, "launch", *arguments)
    assert outcome.code in (1, 2)
    assert words in outcome.err


def test_a_model_that_is_not_fit_is_told(capsys: Capture, told: Path) -> None:
    with serving(fake(context_length=4096)) as served:
        outcome = run_here(capsys, "launch", "claude", "--url", served.base)
        assert outcome.code == 1
        assert "fake has a context of 4,096 tokens; a first turn of Claude Code needs 32,768" in outcome.err
        assert "start its server with --context-length 32768" in outcome.err
        assert not told.exists()
        forced = run_here(capsys, "launch", "claude", "--url", served.base, "--force")
        assert (forced.code, "note: fake has a context of 4,096" in forced.err) == (0, True)
        assert run_here(capsys, "launch", "claude", "other", "--url", served.base).code == 1


def test_of_several_models_one_is_named(capsys: Capture, told: Path) -> None:
    with serving_fleet(fake_offer("one", aliases=("first",)), fake_offer("two")) as fleet:
        for name in ("one", "two"):
            fleet.said(name, max_tokens=1)
        url = f"http://127.0.0.1:{fleet.port}"
        unnamed = run_here(capsys, "launch", "claude", "--url", url, "--force")
        assert run_here(capsys, "launch", "claude", "first", "--url", url, "--force").code == 0
        assert heard(told)["env"]["ANTHROPIC_MODEL"] == "first"
        named = run_here(capsys, "launch", "claude", "two", "--url", url, "--force")
    assert (unnamed.code, "has several models: name one; there are one, two" in unnamed.err) == (1, True)
    assert (named.code, heard(told)["env"]["ANTHROPIC_MODEL"]) == (0, "two")


def test_a_program_that_is_not_installed(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    outcome = run_here(capsys, "launch", "opencode", "fake")
    assert outcome.code == 2
    assert "opencode is not installed; run: npm install -g opencode-ai" in outcome.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_signals(told: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C is the agent's, which takes it as it likes. A closed terminal and SIGTERM end it, and the server."""
    waiting = tmp_path / "bin" / "claude"
    waiting.write_text(
        f"#!{sys.executable}\nimport os, pathlib, time\n"
        "pathlib.Path(os.environ['TOLD']).write_text(os.environ['ANTHROPIC_BASE_URL'])\n"
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    raise SystemExit(5)\n"
    )
    command = [sys.executable, "-m", "drivetrain", "launch", "claude", "fake", "--force"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    while not told.exists() or not told.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (5 if number is signal.SIGINT else 143), error
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(told.read_text() + "/health", timeout=5)
