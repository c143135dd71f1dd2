"""Their servers and ours as processes, each on a free port, their output in a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
THEIRS = Path(__file__).parent / "theirs"
FASTCHAT = ROOT / ".venv-fastchat" / "bin" / "python"
DBGPT = ROOT / ".venv-dbgpt" / "bin" / "python"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def until(true: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def ask(url: str, body: Any = None, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Process:
    """One server. `start` again after `stop` gives it the same port."""

    patience_s = 2.0
    """FastChat's controller has a thread that no SIGTERM ends."""
    start_s = 120.0

    def __init__(self, command: Sequence[str | Path], port: int, folder: Path, name: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._command = [str(part) for part in command]
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        quiet = {name: value for name, value in os.environ.items() if name != "DRIVETRAIN_API_KEY"}
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._folder, env={**quiet, "LOGDIR": str(self._folder)}
            )
        until(lambda: self._here(ready), f"{self.log.name}: not ready", self.start_s)

    def _here(self, ready: Callable[[], bool] | None) -> bool:
        assert self._running is not None
        assert self._running.poll() is None, self.log.read_text()[-3000:]
        return ready() if ready is not None else listens(self.port)

    def stop(self) -> int:
        """Its status, after SIGTERM, or after SIGKILL where that is not heard."""
        assert self._running is not None
        self._running.send_signal(signal.SIGTERM)
        try:
            return self._running.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            self._running.kill()
            return self._running.wait()

    @contextlib.contextmanager
    def running(self, ready: Callable[[], bool] | None = None) -> Iterator[Process]:
        try:
            self.start(ready)
            yield self
        finally:
            if self._running is not None and self._running.poll() is None:
                self.stop()


class Worker(Process):
    """Ours, on the real small model, on one thread: beside so many processes two would wait for each other."""

    patience_s = 60.0

    def __init__(self, model: str, folder: Path, *flags: str, name: str) -> None:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "drivetrain",
            "serve",
            model,
            "--name",
            name,
            "--port",
            str(port),
            "--threads",
            "1",
        ]
        super().__init__([*command, *flags], port, folder, name)

    def ready(self) -> bool:
        try:
            return bool(ask(f"{self.url}/ready", method="GET"))
        except (OSError, urllib.error.HTTPError):
            return False

    @property
    def busy(self) -> int:
        status = ask(f"{self.url}/status", method="GET")
        return int(status["running"] + status["waiting"])


def fastchat_controller(folder: Path) -> Process:
    port = free_port()
    module: list[str | Path] = [FASTCHAT, "-m", "fastchat.serve.controller", "--host", "127.0.0.1", "--port", str(port)]
    return Process(module, port, folder, "fastchat-controller")


def fastchat_api(controller: str, folder: Path) -> Process:
    port = free_port()
    module: list[str | Path] = [
        FASTCHAT,
        "-m",
        "fastchat.serve.openai_api_server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    return Process([*module, "--controller-address", controller], port, folder, "fastchat-api")


def dbgpt_controller(folder: Path) -> Process:
    port = free_port()
    return Process([DBGPT, THEIRS / "dbgpt_controller.py", str(port)], port, folder, "dbgpt-controller")


def dbgpt_api(controller: str, folder: Path) -> Process:
    port = free_port()
    settings = folder / "dbgpt-api.toml"
    settings.write_text(
        f'[log]\nlevel = "INFO"\n[service.model.api]\nhost = "127.0.0.1"\nport = {port}\n'
        f'controller_addr = "{controller}"\nembedding_batch_size = 4\n'
    )
    return Process([DBGPT, "-m", "dbgpt.model.cluster.apiserver.api", "-c", settings], port, folder, "dbgpt-api")


def run_theirs(python: Path, script: str, *arguments: str, stdin: str = "") -> Any:
    """The last line that a script of `theirs` prints, which is JSON; DB-GPT prints one before it where `CI` is set."""
    command = [str(python), str(THEIRS / script), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
