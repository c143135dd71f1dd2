"""The server's own settings: from flags, the environment and the file; and `serve --explain`, which starts nothing."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_rigs import run_here, without_settings

from drivetrain.assembly import SETTINGS
from drivetrain.cli import main
from drivetrain.cli.flags.server_options import KEY_FILES, SERVER, read_server
from drivetrain.core.settings import declarations
from drivetrain.server.settings import ServerSettings
from server.test_process import started

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the settings file that DRIVETRAIN_CONFIG names."""

    def write(text: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        monkeypatch.setenv("DRIVETRAIN_CONFIG", str(path))
        return path

    return write


def parsed(*arguments: str) -> argparse.Namespace:
    return main._parsers()[0].parse_args(["serve", "fake", *arguments])


def explained(capsys: Capture, *arguments: str) -> dict[str, str]:
    """The rows of the server in `serve --explain`."""
    outcome = run_here(capsys, "serve", *(arguments or ("fake",)), "--explain")
    assert (outcome.code, outcome.err) == (0, "")
    rows = outcome.out.partition("\nserver\n")[2].partition("\n\n")[0].splitlines()
    return {row.split()[0]: row.split(None, 1)[1] for row in rows}


def test_flag_environment_file_default_in_that_order(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, file: Callable[[str], Path]
) -> None:
    path = file('[serve]\nport = 1111\nmax_prompts = 11\nkeep_alive_s = 11\nallowed_hosts = ["a.example"]\n')
    monkeypatch.setenv("DRIVETRAIN_PORT", "2222")
    monkeypatch.setenv("DRIVETRAIN_MAX_PROMPTS", "22")
    monkeypatch.setenv("DRIVETRAIN_ALLOWED_ORIGINS", "https://a.example, http://localhost:3000")
    rows = explained(capsys, "fake", "--port", "3333", "--unknown-fields", "warn")
    assert set(rows) == {*SERVER, "api_keys", "admin_keys"}
    assert rows["port"] == "3333  (flag)"
    assert rows["unknown_fields"] == "'warn'  (flag)"
    assert rows["max_prompts"] == "22  (environment DRIVETRAIN_MAX_PROMPTS)"
    assert rows["allowed_origins"].startswith("('https://a.example', 'http://localhost:3000')  (environment")
    assert rows["keep_alive_s"] == f"11.0  (file {path}: serve.keep_alive_s)"
    assert rows["allowed_hosts"] == f"('a.example',)  (file {path}: serve.allowed_hosts)"
    assert rows["host"] == "'127.0.0.1'  (default)"
    assert rows["api_key_file"] == "not set  (default)"


def test_each_setting_has_a_flag_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(SERVER) - set(KEY_FILES) == set(declarations(ServerSettings)) - {
        "api_keys", "admin_keys", "write_timeout_s",
    }  # fmt: skip
    written = {"host": "localhost", "unknown_fields": "warn", "metrics_compat": "vllm", "insecure_no_key": "true"}
    written |= {"allowed_hosts": "a.example", "allowed_origins": "*", "keep_billing_line": "true"}
    for name in SERVER:
        monkeypatch.setenv(f"DRIVETRAIN_{name.upper()}", written.get(name, "1234"))
    stated = read_server(parsed())
    assert set(stated.values) == set(SERVER)
    assert ServerSettings(**stated.given).max_body_bytes == 1234
    for name in SERVER:
        assert stated.origins[name] == f"environment DRIVETRAIN_{name.upper()}"
    assert not set(SERVER) & set(SETTINGS.all), "their variables would be one"


@pytest.mark.parametrize(
    ("environment", "text", "words"),
    [
        ({"DRIVETRAIN_PORT": "many"}, "", "DRIVETRAIN_PORT must be an integer, not 'many'"),
        ({"DRIVETRAIN_PORT": "65536"}, "", "DRIVETRAIN_PORT is 65536; it must be from 0 to 65535"),
        ({"DRIVETRAIN_ALLOWED_HOST": "x"}, "", "did you mean DRIVETRAIN_ALLOWED_HOSTS?"),
        ({"DRIVETRAIN_MAX_RUNNIG": "1"}, "", "did you mean DRIVETRAIN_MAX_RUNNING?"),
        ({}, "[serve]\nport = '1'", "must be an integer, not '1'"),
        ({}, "[serve]\nprot = 1", "there is no prot under [serve]; did you mean port?"),
        ({}, "[serve]\nhost = '0.0.0.0'", "listening on 0.0.0.0 lets other machines in"),
        ({}, "[serve]\napi_key_file = '/no/such'", "the key file /no/such cannot be read"),
        ({}, "[serve]\napi_key_file = ''", "is an empty string"),
        ({}, "[serve]\napi_keys = ['secret']", "there is no api_keys under [serve]"),
        ({}, "[serve]\nallowed_origins = ['a']", "an origin looks like"),
        ({}, "[serve", "is not TOML"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    file: Callable[[str], Path],
    environment: dict[str, str],
    text: str,
    words: str,
) -> None:
    file(text)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for more in ((), ("--explain",)):
        outcome = run_here(capsys, "serve", "fake", *more)
        assert outcome.code == 2
        assert words in outcome.error
    assert "secret" not in outcome.err


def test_what_kubernetes_sets_for_a_service_is_left_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_PORT", "tcp://10.0.0.7:8000")
    monkeypatch.setenv("DRIVETRAIN_PORT_8000_TCP_ADDR", "10.0.0.7")
    monkeypatch.setenv("DRIVETRAIN_SERVICE_HOST", "10.0.0.7")
    assert explained(capsys)["port"] == "8000  (default)"


def test_explain_tells_of_keys_and_never_which(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert explained(capsys)["api_keys"] == "0  (default)"
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "hidden")
    assert explained(capsys)["api_keys"] == "1  (environment DRIVETRAIN_API_KEY)"
    (tmp_path / "keys").write_text("hidden\nhidden too\n")
    rows = explained(capsys, "fake", "--api-key-file", str(tmp_path / "keys"))
    assert (rows["api_keys"], rows["admin_keys"]) == ("2  (api_key_file)", "0  (default)")
    assert "hidden" not in str(rows)


def test_explain_tells_the_engine_and_why(capsys: Capture, tmp_path: Path) -> None:
    weights = tmp_path / "small.gguf"
    weights.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    outcome = run_here(capsys, "serve", str(weights), "--explain")
    head, engine, *rows = outcome.out.splitlines()
    assert head == "small: gguf from local"
    assert engine == "engine: llamacpp: the weights are gguf, which llamacpp runs as they are"
    told = {row.split()[0]: row.split(None, 1)[1] for row in rows if row and row != "server"}
    assert told["slots"] == "4  (default)"
    assert told["threads"] == "llama.cpp's choice, within a quota  (default)"
    assert "quantize" not in told  # which llamacpp does not have
    outcome = run_here(capsys, "serve", str(weights), "--explain", "--slots", "8", "--engine", "llamacpp")
    assert "engine: llamacpp: named by the setting\n" in outcome.out
    assert re.search(r"^slots +8  \(flag or keyword\)$", outcome.out, re.MULTILINE)
    refused = run_here(capsys, "serve", str(weights), "--explain", "--quantize", "int8")
    assert (refused.code, refused.out) == (2, "")
    assert "llamacpp has no setting quantize" in refused.error


def test_explain_of_what_is_not_here(capsys: Capture) -> None:
    outcome = run_here(capsys, "serve", "smollm2-135m", "--explain")
    assert outcome.code == 0
    assert outcome.out.startswith(
        "smollm2-135m: smollm2-135m is not pulled yet; run: drivetrain pull smollm2-135m\n"
        "engine: chosen by the weights, which are not here\n"
    )
    outcome = run_here(capsys, "serve", "org/name:Q4_K_M", "--engine", "llamacpp", "--explain")
    assert "engine: llamacpp: named by the setting" in outcome.out
    assert "org/name:Q4_K_M is not pulled yet" in outcome.out
    outcome = run_here(capsys, "serve", "http://127.0.0.1:9/v1", "--explain")
    assert "engine: remote: the model is a URL" in outcome.out


def test_a_server_listens_where_the_environment_says(tmp_path: Path) -> None:
    """On a port that the system picks, since no flag says otherwise; the file has a limit."""
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nmax_prompts = 2\nmodels = ["fake"]\n')
    environment = {"DRIVETRAIN_PORT": "0", "DRIVETRAIN_CONFIG": str(file)}
    with started("--quiet", environment=environment) as server:
        server.wait_ready()
        status, document = asked(server.base, {"model": "fake", "prompt": ["a", "b", "c"]})
    assert status == 400
    assert "the limit is 2" in document["error"]["message"]


def asked(base: str, body: object) -> tuple[int, dict[str, dict[str, str]]]:
    import http.client

    with contextlib.closing(http.client.HTTPConnection(base.removeprefix("http://"), timeout=60)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
