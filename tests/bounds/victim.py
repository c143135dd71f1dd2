"""A server in a process of its own, which tells how long its event loop stood still and how much memory it took.

    python tests/bounds/victim.py '{"model": "fake", "script": {}, "worker": {}, "server": {}, "files": 40}'

prints its port. It can open no more than `files`, if that is given. `GET /bounds` gives the figures since the last
`GET /bounds/reset`. A stall is counted in seconds of CPU that this process used between two turns of its loop, as a
core of `USUAL_S` has them: neither what other processes do to the machine nor a slower one count.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drivetrain import assembly
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.server.app import create_app
from drivetrain.server.context import Context
from drivetrain.server.dropin import fastchat
from drivetrain.server.run import Stop, bind, serve
from drivetrain.server.settings import ServerSettings
from drivetrain.telemetry.memory import settle_heap
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

BEAT_S = 0.002
_STATUS = Path("/proc/self/status")


class Heart:
    """Beats on the loop; the longest time between two beats is the longest stall.

    The CPU time of a stall is without the passes of Python's collector: how long one takes depends on how much is
    alive, and when it comes on what was made before, not on what is done in one piece.
    """

    def __init__(self) -> None:
        self._collected = self._pass_began = 0.0
        gc.callbacks.append(self._on_collector)
        self.reset()

    def reset(self) -> None:
        self.stall_cpu_s = self.stall_s = 0.0
        self._last = (self._cpu(), time.monotonic())

    def _cpu(self) -> float:
        return time.process_time() - self._collected

    def _on_collector(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self._pass_began = time.process_time()
        else:
            self._collected += time.process_time() - self._pass_began

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done within is no part of a stall: it is the harness's own."""
        (cpu, now), began = self._last, (self._cpu(), time.monotonic())
        yield
        self._last = (cpu + self._cpu() - began[0], now + time.monotonic() - began[1])

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            cpu, now = self._cpu(), time.monotonic()
            self.stall_cpu_s = max(self.stall_cpu_s, cpu - self._last[0])
            self.stall_s = max(self.stall_s, now - self._last[1] - BEAT_S)
            self._last = (cpu, now)


USUAL_S = 0.012
"""CPU time of `_work` on the machines for which the bounds were set."""


def slowness() -> float:
    """How much slower this core is at present than the usual one; 1 for a faster one."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        _work()
        times.append(time.thread_time() - began)
    return max(1.0, min(times) / USUAL_S)


def _work() -> None:
    """What a request mostly costs: JSON that is read and written, objects that come and go."""
    rows = [{"name": str(number), "values": [number / 3, None, "text"]} for number in range(4000)]
    assert json.loads(json.dumps(rows)) == rows


def memory(name: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the peak since `forget_peak`), in bytes."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def main(about: dict[str, Any]) -> None:
    heart = Heart()

    async def figures(request: Request, context: Context) -> Response:
        found = {
            "stall_cpu_s": heart.stall_cpu_s,
            "stall_s": heart.stall_s,
            "rss_bytes": memory("VmRSS"),
            "peak_bytes": memory("VmHWM"),
            "tasks": len(asyncio.all_tasks()),
        }
        with heart.apart():
            found["stall_cpu_s"] /= slowness()
        return JSONResponse(found)

    async def reset(request: Request, context: Context) -> Response:
        forget_peak()
        heart.reset()
        return Response()

    settings = ServerSettings(port=0, **about.get("server", {}))
    sock, stop = bind(settings), Stop()
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(await opened(about))
        models = Fleet.of({worker.metadata.name: worker})
        routes = (("GET", "/bounds", figures), ("GET", "/bounds/reset", reset), *fastchat.ROUTES)
        beating = asyncio.create_task(heart.beat())

        def ready() -> None:
            settle_heap()
            print(sock.getsockname()[1], flush=True)

        with stop.on_signals():
            await serve(
                create_app(models, settings, None, routes),
                settings,
                sock,
                start=lambda: asyncio.sleep(0),
                drain=lambda: models.drain(2.0),
                stop=stop,
                ready=ready,
            )
        beating.cancel()


async def opened(about: dict[str, Any]) -> EngineWorker:
    model, wanted = about.get("model", "fake"), about.get("worker", {})
    if model != "fake":
        return await assembly.Worker.open(model, **wanted)
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    worker = EngineWorker(FakeEngine(Script(**about.get("script", {}))), spec, Settings(**wanted))
    await worker.start()
    return worker


def limit_files(num: int) -> None:
    """Both limits, so that it cannot raise them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (num, num))


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if "files" in given:
        limit_files(given["files"])
    asyncio.run(main(given))
