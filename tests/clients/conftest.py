"""The official clients, unchanged, at our server on real weights: in `.venv-clients` (`make test-clients`).

The server is a process of its own, from our environment: the clients' one has nothing of ours.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dropin.processes import Process, free_port, until

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("DRIVETRAIN_PYTHON", ROOT / ".venv" / "bin" / "python"))
MODEL = "smollm2-135m"
FLAGS = {"llamacpp": ["--threads", "1"], "native": []}
"""The client computes as well, and where they wait for their turns, two threads of llama.cpp are slower than one."""


def pytest_configure(config: pytest.Config) -> None:
    """What the clients' libraries warn of is not ours to mend; of pydantic's serializer, langchain-openai's streams."""
    for warning in (
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
        "ignore:Pydantic serializer warnings:UserWarning",
    ):
        config.addinivalue_line("filterwarnings", warning)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
            return bool(json.load(answer))
    except OSError:
        return False


def busy(url: str) -> int:
    with urllib.request.urlopen(f"{url}/status", timeout=10) as answer:
        status = json.load(answer)
    return int(status["running"] + status["waiting"])


@pytest.fixture(params=sorted(FLAGS), scope="session")
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a server on this engine. Afterwards nothing is left running on it, and it ends when asked to."""
    port = free_port()
    serve: list[str | Path] = [PYTHON, "-m", "drivetrain", "serve", MODEL, "--engine", request.param]
    command = [*serve, "--port", str(port), *FLAGS[request.param]]
    process = Process(command, port, tmp_path_factory.mktemp(request.param), request.param)
    process.patience_s = 60.0
    with process.running(lambda: is_ready(process.url)):
        yield f"{process.url}/v1"
        until(lambda: busy(process.url) == 0, "a request is left")
        assert process.stop() == 0, process.log.read_text()[-3000:]
