"""Real engines that take turns in one place under alternating load, one of them broken; then all is as before."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from drivetrain.assembly import SETTINGS
from drivetrain.cli.serve.fleet import FleetArguments, FleetModel
from drivetrain.cli.serve.offers import make_fleet
from drivetrain.core.errors import DrivetrainError, NotLoaded
from drivetrain.core.parameters import build_request
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.telemetry.memory import host_memory
from drivetrain.worker.sources import read_settings
from drivetrain.worker.worker import EngineWorker

pytestmark = pytest.mark.soak

REQUEST = build_request({"prompt": "Once", "max_tokens": 8, "temperature": 0, "ignore_eos": True})
POOLS = ("asyncio_", "ThreadPoolExecutor")
"""Threads of the event loop's own pool stay, and there are never more of them than it may have."""


def children() -> int:
    """Processes of ours that run."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += int(fields[1]) == os.getpid() and fields[0] != "Z"
    return found


def num_threads() -> int:
    return sum(not thread.name.startswith(POOLS) for thread in threading.enumerate())


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def client(fleet: Fleet, number: int, rounds: int, outcomes: Counter[str]) -> None:
    rng = random.Random(number)
    for turn in range(rounds):
        name = ("llama-a", "llama-b", "tiny", "broken")[(number + turn) % 4]
        how = rng.choice(["whole", "whole", "leave", "give up"])
        try:
            async with (
                asyncio.timeout(0.05 if how == "give up" else None),
                fleet.lease(name, 60.0) as worker,
                aclosing(cast("EngineWorker", worker)._open(REQUEST)) as stream,
            ):
                async for _ in stream:
                    if how == "leave":
                        break
            outcomes[name] += 1
        except TimeoutError:
            outcomes["gave up"] += 1
        except NotLoaded as exc:
            outcomes["no weights" if "holds no weights" in exc.message else exc.message] += 1
        except DrivetrainError as exc:
            outcomes[exc.code] += 1


async def storm(fleet: Fleet, rounds: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(client(fleet, number, rounds, outcomes))
    return outcomes


async def empty(fleet: Fleet) -> tuple[int, int, int, int, int]:
    """With every model unloaded: processes, threads, tasks, open files, bytes."""
    async with asyncio.timeout(60):
        while any(member.stage.value in {"loading", "ready", "unloading"} for member in fleet.members):
            for member in fleet.members:
                if member.worker is not None and not member.leases:
                    fleet.unload(member.name)
            await asyncio.sleep(0.05)
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # what the C library keeps for later is no leak
    if trim is not None:
        trim(0)
    tasks = len(asyncio.all_tasks())
    return children(), num_threads(), tasks, num_files(), host_memory().allocated_bytes


async def test_nothing_leaks(smollm2: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "llama-a": (smollm2, {"slots": 2, "context_length": 512}),
        "llama-b": (smollm2, {"slots": 2, "context_length": 512}),
        "tiny": (str(checkpoint("llama")), {"engine": "native", "kv_cache_gb": 0.05}),
        "broken": (str(tmp_path), {}),
    }
    chosen = [
        FleetModel(name, reference, read_settings(SETTINGS, name, {**given, "name": name}, environment={}))
        for name, (reference, given) in models.items()
    ]
    fleet = make_fleet(chosen, FleetArguments(max_loaded=1, turn_s=0.2), lambda what, share: None)
    await fleet.start()
    await storm(fleet, 8)
    before = await empty(fleet)
    loads = fleet.member("llama-a").num_loads
    outcomes = await storm(fleet, 24)
    after = await empty(fleet)
    print(f"{dict(outcomes)}, loads {[m.num_loads for m in fleet.members]}, before {before}, after {after}")
    assert sum(outcomes.values()) == 192
    assert min(outcomes[name] for name in ("llama-a", "llama-b", "tiny", "no weights", "gave up")) > 0
    assert set(outcomes) <= {"llama-a", "llama-b", "tiny", "no weights", "gave up"}
    assert fleet.member("llama-a").num_loads > loads
    assert fleet.member("broken").num_loads == 0
    assert before[0] == after[0] == 0
    assert after[1] <= before[1]
    assert after[2] == before[2]
    assert after[3] <= before[3]
    assert after[4] - before[4] < 100_000_000
    await fleet.stop()
    assert children() == 0
