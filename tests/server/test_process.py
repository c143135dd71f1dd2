"""`drivetrain serve` as a process: what it prints works when pasted, and signals end it cleanly."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from drivetrain.server.http.file_limit import WANTED

OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)  # before a server in this process has raised it
COMMAND = [sys.executable, "-m", "drivetrain", "serve"]


def _limited(open_files: int | None) -> list[str]:
    """Both limits, so that it cannot raise them."""
    return [] if open_files is None else ["bash", "-c", f'ulimit -n {open_files}; exec "$0" "$@"']


class Process:
    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None, open_files: int | None = None
    ) -> None:
        # What is printed goes through a pipe, so the process must flush it itself.
        clean = {k: v for k, v in os.environ.items() if k != "DRIVETRAIN_API_KEY"}
        self.process = subprocess.Popen(
            [*_limited(open_files), *COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **(environment or {})},
        )
        self.greeting = ""

    def wait_ready(self) -> str:
        """What it prints when it is ready."""
        assert self.process.stdout is not None
        while "In Python" not in self.greeting:
            line = self.process.stdout.readline()
            assert line, self.process.communicate(timeout=10)
            self.greeting += line
        self.greeting += self.process.stdout.readline()
        return self.greeting

    @property
    def base(self) -> str:
        found = re.search(r"http://[^\s/]+", self.greeting)
        assert found
        return found.group()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextlib.contextmanager
def started(
    *arguments: str, environment: dict[str, str] | None = None, open_files: int | None = None
) -> Iterator[Process]:
    made = Process(*arguments, environment=environment, open_files=open_files)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.communicate(timeout=30)


def test_a_process_that_may_open_few_files_takes_fewer_connections() -> None:
    """The limit is raised if it can be. What is kept of it is in `tests/bounds/test_handles.py`."""
    with contextlib.ExitStack() as stack:
        soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in OPEN_FILES)
        server = stack.enter_context(started("fake", "--port", "0"))
        server.wait_ready()
        found = re.findall(r"Max open files +(\w+)", Path(f"/proc/{server.process.pid}/limits").read_text())[0]
        assert (sys.maxsize if found == "unlimited" else int(found)) == max(soft, min(hard, WANTED))
        few = stack.enter_context(started("fake", "--port", "0", open_files=400))
        few.wait_ready()
        address = ("127.0.0.1", int(few.base.rpartition(":")[2]))
        kept = stack.enter_context(contextlib.closing(http.client.HTTPConnection(*address, timeout=10)))
        for i in range(4):
            for _ in range(500 if i == 1 else 0):
                stack.enter_context(socket.create_connection(address))
            began = time.monotonic()
            kept.request("GET", "/health")
            assert kept.getresponse().read() == b'{"status":"ok"}'
            assert time.monotonic() - began < 8
        few.process.send_signal(signal.SIGTERM)
        code, errors = few.end()
        assert code == 0
        assert re.search(r"may open only 400 files, so it can serve about 3\d\d connections, not 2048", errors)
        assert "out of system resource" not in errors


def shell(line: str, environment: dict[str, str] | None = None) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, **(environment or {})},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("way", ["open", "environment", "file"])
def test_the_lines_work_when_pasted(way: str, tmp_path: Path) -> None:
    arguments, environment = ["fake", "--port", "0", "--name", 'my "model"'], {}
    if way == "environment":
        environment = {"DRIVETRAIN_API_KEY": "a key$"}
    if way == "file":
        file = tmp_path / "my keys.txt"
        file.write_text("# comment\nfirst\nsecond\n")
        arguments += ["--api-key-file", str(file)]
    with started(*arguments, environment=environment) as server:
        greeting = server.wait_ready()
        curl = next(line for line in greeting.splitlines() if line.startswith("  curl"))
        python = next(line for line in greeting.splitlines() if "python3 -c" in line)
        assert '"finish_reason"' in shell(curl.replace("curl ", "curl -sS "), environment)
        assert shell(python, environment).strip()
        if way == "open":
            with urllib.request.urlopen(f"{server.base}/") as page:
                assert page.status == 200
        else:
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(f"{server.base}/v1/models")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once(number: signal.Signals) -> None:
    with started("fake", "--port", "0") as server:
        server.wait_ready()
        with socket.create_connection(("127.0.0.1", int(server.base.rpartition(":")[2]))):
            began = time.monotonic()
            server.process.send_signal(number)
            assert server.end() == (0, "")
            assert time.monotonic() - began < 5


def long_stream(server: Process, seen: list[str], ended: list[object], n: int = 8) -> threading.Thread:
    def read() -> None:
        client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0)
        try:
            stream = client.completions.create(
                model="fake", prompt="x", max_tokens=4000, n=n, stream=True, extra_body={"ignore_eos": True}
            )
            for chunk in stream:
                seen.append(chunk.choices[0].text)
            ended.append("done")
        except openai.OpenAIError as exc:
            ended.append(exc)
        finally:
            client.close()

    thread = threading.Thread(target=read)
    thread.start()
    while not seen and not ended:
        time.sleep(0.005)
    return thread


def test_sigterm_lets_streams_end() -> None:
    with started("fake", "--port", "0", "--drain-s", "30") as server:
        server.wait_ready()
        seen: list[str] = []
        ended: list[object] = []
        thread = long_stream(server, seen, ended, n=1)
        server.process.send_signal(signal.SIGTERM)
        thread.join(30)
        assert ended == ["done"]
        assert server.end()[0] == 0


def test_sigterm_ends_streams_after_the_grace_time() -> None:
    with started("fake", "--port", "0", "--drain-s", "0") as server:
        server.wait_ready()
        seen: list[str] = []
        ended: list[object] = []
        thread = long_stream(server, seen, ended)
        server.process.send_signal(signal.SIGTERM)
        thread.join(30)
        assert isinstance(ended[0], openai.APIError)
        assert server.end()[0] == 0


def test_a_second_signal_ends_it_now() -> None:
    with started("fake", "--port", "0", "--drain-s", "30") as server:
        server.wait_ready()
        seen: list[str] = []
        ended: list[object] = []
        thread = long_stream(server, seen, ended)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.end()[0] == 128 + signal.SIGTERM
        thread.join(10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fake", "--host", "0.0.0.0"], "--insecure-no-key"),
        (["fake", "--host", "no.such.name.invalid", "--insecure-no-key"], "cannot listen"),
        (["fake", "--port", "70000"], "port is 70000"),
        (["fake", "--api-key-file", "/nowhere"], "cannot be read"),
        (["fake", "--max-body-bytes", "0"], "--max-body-bytes is 0"),
    ],
)
def test_one_line_errors(arguments: list[str], words: str) -> None:
    with started(*arguments) as server:
        code, errors = server.end()
    assert code == 2
    assert words in errors
    assert errors.count("\n") == 1


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, started("fake", "--port", str(taken.getsockname()[1])) as one:
        code, errors = one.end()
    assert code == 2
    assert "in use; choose another one with --port" in errors
    assert errors.count("\n") == 1


def test_an_engine_that_was_passed_over_is_one_line(checkpoint: Callable[[str], Path]) -> None:
    with started(str(checkpoint("bloom")), "--port", "0", "--quiet") as server:
        server.wait_ready()
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.end()
    assert code == 0
    assert errors.startswith("note: native cannot run this model: the class BloomForCausalLM does its attention by")
    assert errors.endswith("; transformers runs it\n")
    assert errors.count("\n") == 1


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with started(str(tmp_path), "--port", "0", "--quiet") as server:
        code, errors = server.end()
    assert code in {1, 2}
    assert errors.count("\n") == 1
