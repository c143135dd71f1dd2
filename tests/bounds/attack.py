"""What the tests of bounds have in common: a victim, and ways to be unkind to it.

with victim(script={"step_delay_s": 0.01}, server={"receipt_timeout_s": 1}) as server:
    before = server.reset()
    server.post("/v1/completions", bad_body)
    after = server.figures()
    assert after.stall_cpu_s < MAX_STALL_S
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MAX_STALL_S = 0.1
"""No request may keep the event loop from its other work for longer, in seconds of CPU."""

_VICTIM = Path(__file__).with_name("victim.py")


@dataclass(frozen=True, slots=True)
class Figures:
    """As of `victim.py`."""

    stall_cpu_s: float
    stall_s: float
    rss_bytes: int
    peak_bytes: int
    tasks: int


class Victim:
    def __init__(self, port: int, process: subprocess.Popen[str], key: str = "") -> None:
        self.port = port
        self.process = process
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def request(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            data = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request(method, path, data, {**self._headers, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()

    def post(self, path: str, body: bytes | dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, data = self.request("POST", path, body)
        return status, json.loads(data)

    def figures(self) -> Figures:
        return Figures(**json.loads(self.request("GET", "/bounds")[1]))

    def reset(self) -> Figures:
        """Forget the longest stall and the peak of memory; what stands then is what an attack begins with."""
        self.request("GET", "/bounds/reset")
        return self.figures()

    def raw(self, timeout_s: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def works(self, model: str = "fake") -> None:
        """A normal request is answered."""
        status, answer = self.post("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 2})
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == 2

    def open_files(self) -> list[str]:
        """What they are links to."""
        with os.scandir(f"/proc/{self.process.pid}/fd") as files:
            return [_link(entry) for entry in files]

    def num_connections(self) -> int:
        """Of the victim's sockets, those that are not listening: whatever state TCP has them in."""
        inodes = {link[8:-1] for link in self.open_files() if link.startswith("socket:[")}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        here = f":{self.port:04X}"
        return sum(row[9] in inodes and row[1].endswith(here) and row[3] != "0A" for row in rows)


def _link(entry: os.DirEntry[str]) -> str:
    """What it is a link to; nothing if it was closed meanwhile."""
    try:
        return os.readlink(entry.path)
    except OSError:
        return ""


@contextlib.contextmanager
def victim(
    model: str = "fake", *, files: int | None = None, errors: IO[bytes] | None = None, **about: dict[str, Any]
) -> Iterator[Victim]:
    """`script`, `worker` and `server` are the fields of `Script`, `Settings` and `ServerSettings`.

    `errors` gets what it writes to stderr.
    """
    limited = {} if files is None else {"files": files}
    arguments = [sys.executable, str(_VICTIM), json.dumps({"model": model, **about, **limited})]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the victim did not start"
        keys = about.get("server", {}).get("api_keys", ("",))
        yield Victim(int(line), process, keys[0])
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def eventually(true: Any, seconds: float = 60.0) -> None:
    """Wait until it is, for as long as a busy machine may need."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.02)
