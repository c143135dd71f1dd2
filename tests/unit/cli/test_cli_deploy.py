"""`drivetrain deploy` where there is no Ray: what is wrong is told, and what to install."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from drivetrain.cli import deploy
from drivetrain.cli import main as cli
from drivetrain.cli.flags.server_options import read_server
from drivetrain.cli.main import main


def test_without_ray_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    assert main(["deploy", "smollm2-135m"]) != 0
    assert "'.[ray]'" in capsys.readouterr().err


def test_the_settings_are_looked_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "smollm2-135m", "--replicas", "2:1"]) == 2
    assert "2:1" in capsys.readouterr().err


def test_a_ray_of_others_needs_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIVETRAIN_API_KEY", raising=False)
    assert main(["deploy", "smollm2-135m", "--address", "auto"]) == 2
    assert "DRIVETRAIN_API_KEY" in capsys.readouterr().err


def test_the_settings_of_a_name_are_those_of_the_model_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `serve NAME=MODEL` reads them."""
    file = tmp_path / "settings.toml"
    file.write_text("timeout_s = 100\n[models.foo]\nmax_waiting = 3\n[models.smollm2-135m]\ndrain_s = 1\n")
    monkeypatch.setenv("DRIVETRAIN_FOO_SLOTS", "7")
    args, _ = cli._parsers()[0].parse_known_args(["deploy", "foo=smollm2-135m", "--config", str(file)])
    plan = deploy._plan(args, "foo=smollm2-135m")
    assert (plan.name, plan.model) == ("foo", "smollm2-135m")
    assert plan.settings == {"timeout_s": 100.0, "max_waiting": 3, "slots": 7}


@pytest.mark.parametrize(
    ("given", "name", "model"),
    [
        ("smollm2-135m", "smollm2-135m", "smollm2-135m"),
        ("fake", "fake", "fake"),
        ("http://127.0.0.1:9/v1#org/far", "org/far", "http://127.0.0.1:9/v1#org/far"),
        ("http://127.0.0.1:9/v1", "127.0.0.1", "http://127.0.0.1:9/v1"),
        ("near=http://127.0.0.1:9/v1", "near", "http://127.0.0.1:9/v1"),
        ("a=b", "a=b", "a=b"),
    ],
)
def test_a_model_has_the_name_that_serve_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, name: str, model: str
) -> None:
    """`serve` asks a URL that names no model; here its host has to do. `a=b` is a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    args, _ = cli._parsers()[0].parse_known_args(["deploy", given])
    plan = deploy._plan(args, given)
    assert (plan.name, plan.model) == (name, model)


def test_the_flags_of_the_server_are_those_of_serve() -> None:
    given = ["--allowed-origins", "https://chat.example", "--unknown-fields", "warn", "--max-prompts", "7"]
    args, _ = cli._parsers()[0].parse_known_args(["deploy", "smollm2-135m", *given])
    stated = read_server(args, without=deploy._NOT_HERE)
    assert (stated.value("host"), stated.value("port")) == ("127.0.0.1", 8000)
    assert stated.given == {
        "allowed_origins": ("https://chat.example",),
        "unknown_fields": "warn",
        "max_prompts": 7,
    }


def test_a_bad_setting_of_the_server_is_told_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "smollm2-135m", "--allowed-origins", "chat.example", "--dry-run"]) == 2
    assert "https://chat.example" in capsys.readouterr().err
