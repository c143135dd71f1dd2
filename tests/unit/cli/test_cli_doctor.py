"""`drivetrain doctor`: what is told, and what is said of things that are missing or broken."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.cli.doctor import distributions, machine
from drivetrain.cli.terminal import origin


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks torch, which takes seconds."""
    monkeypatch.setattr(machine, "find_devices", lambda: ([], []))


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = run_here(capsys, "doctor", "--json").json
    assert report["cpu"]["usable"] >= 1
    assert report["memory"]["total_bytes"] > 0
    assert report["devices"][0]["device"] == "cpu"
    assert report["device_problems"] == []
    assert report["engines"][-1] == {"name": "fake", "ready": True, "problem": None, "install": None}
    assert {package["name"] for package in report["packages"]} >= {"jinja2", "pillow", "torch", "transformers"}
    store = report["store"]
    assert (store["path"], store["exists"], store["num_models"]) == (str(tmp_path / "home"), False, 0)
    assert store["free_bytes"] > 0
    assert report["environment"] == ["DRIVETRAIN_HOME"]


def test_without_extras_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_devices: None
) -> None:
    real = origin.installed_version
    monkeypatch.setattr(distributions, "installed_version", lambda n: None if n in {"torch", "gguf"} else real(n))
    outcome = run_here(capsys, "doctor")
    assert outcome.code == 0
    wanted = "transformers  not installed (torch, gguf missing); run: pip install '.[transformers]'"
    assert wanted in outcome.out.replace("gguf, torch", "torch, gguf")
    assert "torch  not installed" in outcome.out


def test_a_version_that_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_devices: None
) -> None:
    monkeypatch.setattr(distributions, "installed_version", lambda name: "1.2")
    outcome = run_here(capsys, "doctor")
    assert "does not fit; run: pip install" in outcome.out
    assert "torch  1.2  (needs >=2.6)" in outcome.out


def test_a_broken_torch_does_not_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashed(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -11, "", "")

    def hung(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 1)

    def unloadable(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nOSError: libcudart.so: not found\n")

    def two_cards(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        told = 'noise\n[{"device": "cuda:0", "name": "A card", "total_bytes": 8000000000}]\n'
        return subprocess.CompletedProcess(command, 0, told, "")

    found = []
    for run in (crashed, hung, unloadable, two_cards):
        monkeypatch.setattr(subprocess, "run", run)
        found.append(machine.find_devices())
    assert [devices for devices, _ in found[:3]] == [[], [], []]
    assert found[0][1] == ["torch is installed, but cannot be imported: exit code -11"]
    assert found[1][1] == ["torch could not be asked for devices (TimeoutExpired)"]
    assert found[2][1] == ["torch is installed, but cannot be imported: OSError: libcudart.so: not found"]
    assert found[3] == ([{"device": "cuda:0", "name": "A card", "total_bytes": 8000000000}], [])


def test_a_store_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_devices: None, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(tmp_path / "home" / "models")
    monkeypatch.setattr("drivetrain.store.store.Store.list", _refuse)
    outcome = run_here(capsys, "doctor")
    assert outcome.code == 0
    assert "Permission denied" in outcome.out


def _refuse(store: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("version", "needs", "fits"),
    [
        ("2.13.0+cpu", ">=2.6", True),
        ("2.6", ">=2.6.0", True),
        ("2.5.1", ">=2.6", False),
        ("6.0.0", "<6,>=5.20", False),
        ("5.23.0", "<6,>=5.20", True),
        ("1.0", "", True),
        ("1.0", "!=1.0", False),
        ("1.0rc1", "~=0.9", True),
    ],
)
def test_version_ranges(version: str, needs: str, fits: bool) -> None:
    assert distributions.fits(version, needs) is fits
