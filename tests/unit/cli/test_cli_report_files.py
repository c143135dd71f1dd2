"""Where reports may be written, and what their heads say of the command and the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.cli.terminal import origin
from drivetrain.cli.terminal.report_files import check_writable
from drivetrain.core.errors import InvalidSetting

COMMANDS = {
    "bench": ("fake",),
    "conform": ("http://127.0.0.1:1",),
    "diff": ("fake", "--engines", "fake,fake"),
    "doctor": ("http://127.0.0.1:1",),
}


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_before_it_begins(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    for path, words in (
        (tmp_path / "no" / "r.html", f"the folder {tmp_path / 'no'} does not exist"),
        (tmp_path, f"it is a folder; name a file, such as {tmp_path / 'report.html'}"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        outcome = run_here(capsys, command, *COMMANDS[command], "--report", str(path))
        assert outcome.code == 2
        assert outcome.error == f"{path} cannot be written: {words}"


def test_one_file_for_two_reports(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r"
    outcome = run_here(capsys, "bench", "fake", "--report", str(path), "--json", str(tmp_path / "." / "r"))
    assert (outcome.code, outcome.error) == (2, f"{path} is named for two reports; give each its own file")


def test_without_permission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root may do everything, so the question is answered here."""
    (tmp_path / "old.html").touch()
    check_writable(None, tmp_path / "old.html", tmp_path / "new.html")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InvalidSetting, match="the file is there, and may not be changed"):
        check_writable(tmp_path / "old.html")
    with pytest.raises(InvalidSetting, match="no file may be made in"):
        check_writable(tmp_path / "new.html")


def test_a_file_is_replaced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("before")
    outcome = run_here(capsys, "diff", "fake", "--engines", "fake,fake", "--tokens", "2", "--report", str(path))
    assert (outcome.code, outcome.err) == (0, f"written: {path}\n")
    assert path.read_text().startswith("<!doctype html>")


def test_doctor_without_a_url_has_no_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcome = run_here(capsys, "doctor", "--report", str(tmp_path / "r.html"))
    assert (outcome.code, outcome.error.split(":")[0]) == (2, "--report is about a server")


SECRET = "sk-0123456789abcdef"


@pytest.mark.parametrize(
    "argument",
    [
        f"api_key={SECRET}", f"--api-key={SECRET}", f"http://h/v1?token={SECRET}&x=1", f"http://user:{SECRET}@h/v1",
        f'{{"api_key": "{SECRET}", "top_k": 3}}', f'{{"headers": {{"Authorization": "Bearer {SECRET}"}}}}',
        f"UPSTREAM_SECRET={SECRET}",
    ],
)  # fmt: skip
def test_a_typed_secret_is_hidden(monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "bench", argument, "--max-tokens", "64", "max_tokens=7", "a key: b"])
    shown = origin.command()
    assert SECRET not in shown
    assert "0123456789" not in shown
    assert "(hidden)" in shown
    assert shown.startswith("drivetrain bench ")
    assert shown.endswith("--max-tokens 64 max_tokens=7 'a key: b'")


def test_the_key_itself_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "plainword")
    monkeypatch.setattr(sys, "argv", ["x", "bench", "--model", "a-plainword-b"])
    assert origin.command() == "drivetrain bench --model a-(hidden)-b"


def test_the_facts() -> None:
    facts = origin.facts()
    assert list(facts) == ["Machine", "Versions", "Command"]
    assert " cores, " in facts["Machine"]
    assert "drivetrain " in facts["Versions"]
    assert "python 3." in facts["Versions"]
