"""One llama.cpp server in a child process of ours: start it, know where it listens and why it died, end it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.results import ComputeThreads
from drivetrain.engines.base.spinning import FEW_SPINS, SPINS, briefly
from drivetrain.engines.llamacpp.child import host, openmp
from drivetrain.engines.llamacpp.child.pace import Pace, SharedNumber
from drivetrain.engines.llamacpp.errors import ProcessDied
from drivetrain.http.spare import SpareSockets
from drivetrain.telemetry.cores import bound_processors, physical_cores

_log = logging.getLogger(__name__)

KEPT_LINES = 40
STOP_TIMEOUT_S = 5.0

STACK = "2M"
"""Of each thread that computes. All of it counts against the limit on memory, used or not; 8 MiB are usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the child is told. `pooling` makes it a server for embeddings; `batch` None leaves the step to it.

    `mmproj` is the file of the vision part.

    `unread` maps the weights and reads none: for a server that only splits text. `spare_bytes` is how much memory the
    process may take once it is ready, beside what it has by then.
    """

    model: str
    slots: int
    context_length: int
    spare_bytes: int
    batch: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    pooling: str | None = None
    mmproj: str | None = None
    unread: bool = False
    yield_cores: bool = False


class ServerProcess:
    """`start` blocks until the model is loaded, so it belongs on a thread; `stop` from any other ends it early.

    `connections` are as many as it must be possible to make, whatever else takes files in this process.
    """

    def __init__(self, launch: Launch, *, connections: int = 0) -> None:
        self._launch = launch
        self._connections = connections
        self.sockets = SpareSockets(0)
        self.key = secrets.token_urlsafe(24)
        self.marker = f"<image-{secrets.token_hex(16)}>"  # nobody can spell what nobody knows
        self.host = "127.0.0.1"
        self.port = 0
        self.version = ""
        self.device = "cpu"
        self.notes: tuple[str, ...] = ()
        self._limit: SharedNumber | None = None
        self._pace: Pace | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Raises `ProcessDied` with what the library said, if the model cannot be loaded."""
        with self._lock:
            if self._stopped:
                raise ProcessDied("it was stopped", ())
            if self._launch.yield_cores and openmp.possible():
                self._limit = SharedNumber.made(self._launch.threads or physical_cores(bound_processors()))
            self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and our own file
                [sys.executable, "-P", "-u", str(Path(host.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={
                    **briefly(os.environ, SPINS if openmp.possible() else FEW_SPINS),
                    "RUST_BACKTRACE": "0",  # its last words are kept, and those are few
                    "OMP_STACKSIZE": os.environ.get("OMP_STACKSIZE", STACK),
                },
                pass_fds=() if self._limit is None else (self._limit.file,),
                start_new_session=True,  # Ctrl-C in the terminal is for the worker alone
            )
            self._reader = threading.Thread(target=self._read, name="drivetrain-llamacpp-log", daemon=True)
            self._reader.start()
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(self._told()) + "\n")
            self._child.stdin.flush()
        except OSError:
            pass  # it died at once: its last words say why
        self._ready.wait()
        if not self.port:
            raise self.death()
        with self._lock:
            if not self._stopped:
                self.sockets = SpareSockets(self._connections)

    def _told(self) -> dict[str, Any]:
        limit = None if self._limit is None else self._limit.file
        return {**asdict(self._launch), "key": self.key, "marker": self.marker, "limit": limit}

    async def start_async(self) -> None:
        """`start` on a thread. Cancelling ends the process, and with it the wait."""
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.stop)
            await asyncio.wait([starting])
            if not starting.cancelled():
                starting.exception()
            raise

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def threads(self) -> ComputeThreads | None:
        return self._pace.threads if self._pace is not None else None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """On the event loop, while it has anything to compute."""
        if self._pace is None:
            yield
            return
        with self._pace.computing():
            yield

    @property
    def last_lines(self) -> Sequence[str]:
        return tuple(self._lines)

    def death(self) -> ProcessDied:
        """Only for a child that has ended: how, and its last words."""
        assert self._child is not None
        code = self._child.wait(STOP_TIMEOUT_S)
        return ProcessDied(f"its process ended with status {code}", self.last_lines)

    def kill(self) -> None:
        """At once and without waiting; `stop` is still to be called."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """Idempotent. Nothing of the child is left afterwards: process, port, pipes, reader thread."""
        with self._lock:
            self._stopped = True
            self.sockets.close()
        if self._limit is not None:
            self._limit.close()  # the child has its own
        child, reader = self._child, self._reader
        if child is None:
            return
        assert reader is not None
        child.kill()  # nothing in it outlives a request, so there is nothing to save
        child.wait(STOP_TIMEOUT_S)
        reader.join(STOP_TIMEOUT_S)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def _begin_pace(self, fixed: str) -> None:
        """`fixed`: why the child cannot change its threads, or nothing."""
        assert self._child is not None
        if self._limit is not None and not fixed:
            self._pace = Pace(self._limit, self._child.pid)
        elif self._launch.yield_cores:
            why = fixed or "there is no way to change it on this system"
            self.notes = (f"llama.cpp keeps its number of threads beside busy processes: {why}",)
            _log.info("%s", *self.notes)

    def _read(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        try:
            for line in self._child.stdout:
                if line.startswith(host.READY):
                    told = json.loads(line.removeprefix(host.READY))
                    self.version, self.device = told["version"], told["device"]
                    self._begin_pace(told["fixed"])
                    self.port = int(told["address"].rpartition(":")[2])
                    self._ready.set()
                else:
                    self._lines.append(line.rstrip())
        finally:
            self._ready.set()
