"""`drivetrain serve A B C` as a process: its greeting, a model that fails, the end."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from server.test_process import Process, shell, started


def complete(server: Process, model: str) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"model": model, "prompt": "x", "max_tokens": 9}).encode()
    asked = urllib.request.Request(f"{server.base}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.loads(exc.read())


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_three_of_which_one_fails(broken: Path, number: signal.Signals) -> None:
    with started("fake", "two=fake", str(broken), "--max-loaded", "1", "--alias", "gpt=two", "--port", "0") as server:
        greeting = server.wait_ready()
        assert greeting.startswith("fake is ready.\ntwo is unloaded.\nbroken is unloaded.\n")
        curl = next(line for line in greeting.splitlines() if line.startswith("  curl"))
        assert '"finish_reason"' in shell(curl.replace("curl ", "curl -sS "))
        assert complete(server, "gpt")[0] == 200
        status, document = complete(server, "broken")
        assert (status, document["error"]["code"]) == (503, "not_loaded")
        assert str(broken.parent) not in document["error"]["message"]
        assert complete(server, "fake")[0] == 200
        began = time.monotonic()
        server.process.send_signal(number)
        code, errors = server.end()
        assert code == 0
        assert "broken could not be loaded" in errors
        assert "Traceback" not in errors
        assert time.monotonic() - began < 10


def test_one_of_two_is_enough_to_begin(broken: Path) -> None:
    with started(str(broken), "fake", "--port", "0", "--quiet") as server:
        assert server.wait_ready().startswith("broken is failed.\nfake is ready.\n")
        server.process.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0


def test_where_none_can_be_loaded_it_ends(broken: Path) -> None:
    with started(str(broken), f"b={broken}", "--port", "0", "--quiet") as server:
        code, errors = server.end()
    assert code == 1
    assert errors.splitlines()[-1].startswith("drivetrain: the model folder holds no weights")
