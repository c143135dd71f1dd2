"""`drivetrain ps`: the models of real servers, with and without a key, and of what is no server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cli_odd_servers import behaving, giving, silent
from cli_rigs import run_here, without_settings

from drivetrain.cli.flags.server_options import own_url
from drivetrain.scale.fleet.policy import FleetLimits
from server.fleet_serving import fake_offer, serving_fleet
from server.serving import fake, serving

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text("our-key\n")
    return str(file)


def test_a_row_for_each_model(capsys: Capture, key_file: str) -> None:
    offers = (fake_offer("one"), fake_offer("two"))
    with serving_fleet(*offers, limits=FleetLimits(max_loaded=1), api_keys=("our-key",)) as fleet:
        fleet.said("one", max_tokens=3)
        url = f"http://127.0.0.1:{fleet.port}"
        shown = run_here(capsys, "ps", url, "--api-key-file", key_file)
        told = run_here(capsys, "ps", f"{url}/v1", "--api-key-file", key_file, "--json")
        locked = run_here(capsys, "ps", url)
    assert (shown.code, shown.err) == (0, "")
    head, one, two, *memory = shown.out.splitlines()
    assert head.split() == ["NAME", "STATE", "ENGINE", "DEVICE", "RUNNING", "WAITING", "TOKENS"]
    assert one.split() == ["one", "ready", "fake", "none", "0", "0", "3"]
    assert two.split()[:2] == ["two", "unloaded"]
    assert memory[0].startswith("memory cpu  ")
    assert [model["name"] for model in told.json["models"]] == ["one", "two"]
    assert told.json["url"] == url
    assert told.json["memory"][0]["allocated_bytes"] > 0
    assert (locked.code, locked.error) == (1, f"{url} tells its models only with a key: give --api-key-file")


def test_a_running_request_is_counted(capsys: Capture) -> None:
    with serving(fake(repeat=True, step_delay_s=0.01)) as served:
        stream = served.client.completions.create(model="fake", prompt="x", max_tokens=4000, stream=True)
        next(iter(stream))
        outcome = run_here(capsys, "ps", served.base)
        stream.close()
        served.settle()
    assert outcome.out.splitlines()[1].split()[4:6] == ["1", "0"]


def test_the_models_of_another_server(capsys: Capture) -> None:
    with behaving(giving({"/v1/models": b'{"data": [{"id": "a\\u001b[2J"}, {"id": "b"}]}', "/health": b"{}"})) as url:
        outcome = run_here(capsys, "ps", url)
    assert outcome.code == 0
    assert outcome.out.splitlines()[2].split() == ["b", "listed", "-", "-", "-", "-", "-"]


def test_where_no_server_is(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("DRIVETRAIN_PORT", str(port))
    outcome = run_here(capsys, "ps")
    assert outcome.code == 1
    assert outcome.error.endswith(
        "nobody listens there; give the URL of a server, or start one: drivetrain serve MODEL"
    )
    outcome = run_here(capsys, "ps", url)
    assert (outcome.code, outcome.error.endswith("nobody listens there")) == (1, True)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("[::1]", "http://[::1]:8000"),
        ("[::]", "http://[::1]:8000"),
        ("a.b", "http://a.b:8000"),
    ],
)
def test_the_server_is_the_one_that_serve_starts(monkeypatch: pytest.MonkeyPatch, host: str, url: str) -> None:
    if host:
        monkeypatch.setenv("DRIVETRAIN_HOST", host)
    assert own_url() == url


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://x"], "ftp://x"),
        (["not a url"], "not a url"),
        (["http://127.0.0.1:1", "--timeout", "0"], "--timeout is 0"),
        (["http://127.0.0.1:1", "--timeout", "nan"], "--timeout is nan"),
        (["http://127.0.0.1:1", "--api-key-file", "/no/such"], "/no/such cannot be read"),
    ],
)
def test_what_is_asked_wrongly_exits_2(capsys: Capture, arguments: list[str], words: str) -> None:
    outcome = run_here(capsys, "ps", *arguments)
    assert outcome.code == 2
    assert words in outcome.error


def test_what_is_no_server(capsys: Capture) -> None:
    with behaving(giving({"/": b"<html>"})) as url:
        outcome = run_here(capsys, "ps", url)
    assert (outcome.code, outcome.out) == (1, "")
    assert "lists no models" in outcome.error
    with behaving(silent) as url:
        outcome = run_here(capsys, "ps", url, "--timeout", "0.2")
    assert outcome.code == 1
    assert outcome.error
