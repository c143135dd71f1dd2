"""The official clients, unchanged, at our server on real weights: in `.venv-clients` (`make test-clients`).

The server is a process of its own, from our environment: the clients' one has nothing of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from clients.table import SCRIPTED, Shown, table
from dropin.processes import Process, free_port, until

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("DRIVETRAIN_PYTHON", ROOT / ".venv" / "bin" / "python"))
MODEL = "smollm2-135m"
FLAGS = {"llamacpp": ["--threads", "1", "--max-repetitions", "40"], "native": ["--max-repetitions", "40"]}
"""The client computes as well, and where they wait for their turns, two threads of llama.cpp are slower than one."""


def pytest_configure(config: pytest.Config) -> None:
    """What the clients' libraries warn of is not ours to mend; of pydantic's serializer, langchain-openai's streams."""
    config.addinivalue_line("markers", "shows(client, ability): a row of the table in docs/clients.md")
    for warning in (
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
        "ignore:Pydantic serializer warnings:UserWarning",
    ):
        config.addinivalue_line("filterwarnings", warning)


SHOWN: Shown = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        engine = str(item.callspec.params["url"]) if "url" in item.fixturenames else SCRIPTED
        for mark in item.iter_markers("shows"):
            told = SHOWN.setdefault(mark.args, {})
            told[engine] = told.get(engine, True) and report.passed
    return report


def pytest_sessionfinish() -> None:
    """The table goes into the file that DRIVETRAIN_CLIENTS_TABLE names."""
    if path := os.environ.get("DRIVETRAIN_CLIENTS_TABLE"):
        Path(path).write_text(table(SHOWN))


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
    process.start_s = 270.0
    with process.running(lambda: is_ready(process.url)):
        yield f"{process.url}/v1"
        until(lambda: busy(process.url) == 0, "a request is left")
        assert process.stop() == 0, process.log.read_text()[-3000:]


Scripted = dict[str, tuple[str, str]]
"""By what it does, a server's URL and the name of its model."""


@pytest.fixture(scope="session")
def scripted() -> Iterator[Scripted]:
    """Servers whose models say a script: `scripted.py`."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("tests", "src"))
    command = [PYTHON, ROOT / "tests" / "clients" / "scripted.py"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(60) == 0
