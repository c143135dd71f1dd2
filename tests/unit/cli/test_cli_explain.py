"""Settings on the command line: where each comes from, and which flag belongs to whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.assembly import SETTINGS
from drivetrain.cli import main as cli
from drivetrain.cli.flags import options
from drivetrain.core.parameters import PARAMETERS

TOML = """
max_waiting = 11
drain_s = 5
[models.fake]
max_unread = 99
"""


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


def test_explain_tells_the_origin_of_all_layers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(TOML)
    monkeypatch.setenv("DRIVETRAIN_TEMPERATURE", "0.5")
    monkeypatch.setenv("DRIVETRAIN_TOP_K", "7")
    monkeypatch.setenv("DRIVETRAIN_FAKE_TOP_K", "8")
    monkeypatch.setenv("DRIVETRAIN_MAX_WAITING", "12")
    monkeypatch.setenv("DRIVETRAIN_MAX_RUNNING", "3")
    arguments = ("inspect", "fake", "--config", str(file), "--max-running", "4", "--trust-remote-code", "--explain")

    outcome = run_here(capsys, *arguments)
    found = {line.split()[0]: line.split(None, 1)[1] for line in outcome.out.splitlines()}
    assert outcome.code == 0
    assert set(found) == set(SETTINGS.all)
    assert found["max_running"] == "4  (flag or keyword)"
    assert found["trust_remote_code"] == "True  (flag or keyword)"
    assert found["top_k"] == "8  (environment DRIVETRAIN_FAKE_TOP_K)"
    assert found["temperature"] == "0.5  (environment DRIVETRAIN_TEMPERATURE)"
    assert found["max_waiting"] == "12  (environment DRIVETRAIN_MAX_WAITING)"
    assert found["drain_s"] == f"5.0  (file {file}: drain_s)"
    assert found["max_unread"] == f"99  (file {file}: models.fake.max_unread)"
    assert found["engine"] == "'auto'  (default)"

    document = run_here(capsys, *arguments, "--json").json
    assert document["max_running"] == {"value": 4, "origin": "flag or keyword"}


def test_for_a_request_the_flag_is_its_own_parameter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVETRAIN_TEMPERATURE", "0.5")
    outcome = run_here(capsys, "generate", "fake", "--temperature", "0", "--explain")
    lines = outcome.out.splitlines()
    assert any(line.split() == ["temperature", "0.5", "(environment", "DRIVETRAIN_TEMPERATURE)"] for line in lines)
    assert lines[-1] == "request temperature  0.0  (flag)"
    document = run_here(capsys, "generate", "fake", "--temperature", "0", "--explain", "--json").json
    assert document["request"] == {"temperature": {"value": 0.0, "origin": "flag"}}
    assert document["settings"]["temperature"]["value"] == 0.5


def test_explain_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("generate", "chat", "inspect"):
        assert run_here(capsys, command, "./no-such-folder", "--explain").code == 0


def test_a_setting_from_the_environment_is_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVETRAIN_FAKE_TEMPERATURE", "0")
    monkeypatch.setenv("DRIVETRAIN_MAX_TOKENS", "3")
    assert run_here(capsys, "generate", "fake", "--message", "x").out == "The\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--max-running", "0"], {}, "max_running is 0; it must be from 1"),
        (["--max-running", "x"], {}, "--max-running: 'x' is not a whole number"),
        ([], {"DRIVETRAIN_MAX_RUNNING": "many"}, "DRIVETRAIN_MAX_RUNNING must be an integer, not 'many'"),
        ([], {"DRIVETRAIN_CONFIG": "/no/such.toml"}, "cannot be read"),
    ],
)
def test_an_unusable_setting_exits_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    words: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = run_here(capsys, "inspect", "fake", *arguments)
    assert outcome.code == 2
    assert words in outcome.error


def test_every_setting_and_every_parameter_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_here(capsys, "inspect", "--help-all").out
    assert all(f"--{name.replace('_', '-')}" in told for name in SETTINGS.all)
    told = run_here(capsys, "generate", "--help-all").out
    forms = {"json_schema", "json_object", "regex", "choice", "grammar"}  # in place of `constraint`
    flags = set(PARAMETERS) - {"messages", "images", "trace_context", "constraint"} | forms
    assert all(f"--{name.replace('_', '-')}" in told for name in flags)


def test_a_setting_written_as_an_argument_is_read_as_the_same_value() -> None:
    """`bench --http` hands its settings to `serve` like this."""
    given = {
        "slots": 2, "temperature": 0.25, "trust_remote_code": True, "prefix_cache": False, "family": "chatml",
        "dtype": "float32", "device": "cuda:1", "media_hosts": ("a.example", "b.example:81"),
        "compile": "on",
        "vllm_args": {"a": [1, None], "b c": "d=é"},
    }  # fmt: skip
    assert {type(SETTINGS.find(name).kind) for name in given} == {type(one.kind) for one in SETTINGS.all.values()}
    arguments = [options.as_argument(name, value) for name, value in given.items()]
    args = cli._parsers()[0].parse_args(["serve", "fake", *arguments])
    assert options.given_settings(args) == given
