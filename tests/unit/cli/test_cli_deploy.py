"""`drivetrain deploy` where there is no Ray: what is wrong is told, and what to install."""

from __future__ import annotations

import importlib.util

import pytest

from drivetrain.cli.main import main


def test_without_ray_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    assert main(["deploy", "smollm2-135m"]) != 0
    assert "drivetrain[ray]" in capsys.readouterr().err


def test_the_settings_are_looked_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "smollm2-135m", "--replicas", "2:1"]) == 2
    assert "2:1" in capsys.readouterr().err


def test_a_ray_of_others_needs_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIVETRAIN_API_KEY", raising=False)
    assert main(["deploy", "smollm2-135m", "--address", "auto"]) == 2
    assert "DRIVETRAIN_API_KEY" in capsys.readouterr().err
