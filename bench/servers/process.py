"""A server in its own process group: started, waited for, paused, and ended with everything that it started."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.2
STOP_S = 10.0
TAIL_LINES = 25
TICKS = os.sysconf("SC_CLK_TCK")


class ServerGroup:
    """The processes of one server. `pgid` is the id of their group; the port is on 127.0.0.1."""

    def __init__(self, pgid: int, port: int) -> None:
        self.pgid = pgid
        self.port = port

    def cpu_s(self) -> float:
        """CPU time of the group's living processes."""
        return sum(int(stat[11]) + int(stat[12]) for stat in self._stats()) / TICKS

    def pause(self) -> None:
        os.killpg(self.pgid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pgid, signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return any(True for _ in self._stats())

    def stop(self) -> None:
        """Gently, then by force. Returns when no process of the group is left."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_S
            while self.alive and time.monotonic() < deadline:
                try:
                    os.killpg(self.pgid, signal.SIGCONT)
                    os.killpg(self.pgid, sign)
                except ProcessLookupError:
                    return
                time.sleep(POLL_S)
        assert not self.alive, f"processes of group {self.pgid} outlive SIGKILL"

    def _stats(self) -> Iterator[list[str]]:
        """The fields of /proc/N/stat from the state on, for each process of the group that has not ended."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == self.pgid and fields[0] != "Z":
                yield fields


@contextmanager
def started(
    command: Sequence[str], variables: Mapping[str, str], port: int, log: Path, ready_path: str, timeout_s: float
) -> Iterator[ServerGroup]:
    """Running and ready. Raises `RuntimeError` with the end of the log if it does not become so in time."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            cwd=log.parent,
            start_new_session=True,
        ) as process,
    ):
        group = ServerGroup(process.pid, port)
        try:
            _wait(process, port, ready_path, log, timeout_s)
            yield group
        finally:
            group.stop()


def _wait(process: subprocess.Popen[bytes], port: int, path: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not answers(port, path):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            how = f"ended with status {process.returncode}" if ended else f"was not ready after {timeout_s:.0f} s"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
            raise RuntimeError(f"the server {how}; the end of {log}:\n{tail}")
        time.sleep(POLL_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def busy_s() -> float:
    """CPU time of the whole machine, all cores together, since it started."""
    user, nice, system, _idle, _wait, irq, softirq = Path("/proc/stat").read_text().split(maxsplit=8)[1:8]
    return sum(int(ticks) for ticks in (user, nice, system, irq, softirq)) / TICKS
