"""One replica on Ray against one worker served directly: same weights, threads and slots.

The replica is behind the server that `drivetrain deploy` runs in its own process or, with `--ingress serve`, behind an
ingress deployment and Serve's proxy, as on a cluster.

Run it with `.venv-ray/bin/python`. Both servers stay up and are measured in turns. Prints one JSON object, with the CPU
time of Ray's processes (not the engine's) per token, and their share of a CPU when idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from http_path import CONTEXT, MODEL, remote, row
from servers.process import free_port

from drivetrain.scale.ray import cluster
from drivetrain.scale.ray.plan import IngressPlan, ModelPlan, arguments_of
from drivetrain.tools.bench.served import ServedTarget, serving
from drivetrain.tools.bench.session import BenchSide, Session
from drivetrain.tools.bench.workload import Closed, Workload

THREADS = 2
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_by_part() -> dict[str, float]:
    """CPU seconds so far of Ray's processes that serve us, and of its others."""
    parts = {"replica": 0.0, "ingress": 0.0, "proxy": 0.0, "other": 0.0}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        seconds = (int(fields[11]) + int(fields[12])) * TICK_S
        if " deploy " in name and "drivetrain" in name:
            parts["ingress"] += seconds
        elif name.startswith(("ray::ServeReplica", "ray::ProxyActor")):
            part = "proxy" if "Proxy" in name else "ingress" if ":ingress" in name else "replica"
            parts[part] += seconds
        elif name.startswith("ray::") or "/ray/" in name:
            parts["other"] += seconds
    return parts


def since(before: dict[str, float], per: float) -> dict[str, float]:
    return {part: (now - before[part]) / per for part, now in cpu_by_part().items()}


def deployed(settings: Mapping[str, int], flags: Sequence[str]) -> AbstractAsyncContextManager[ServedTarget]:
    more = ["--num-cpus", "0", "--max-ongoing", str(4 * settings["slots"])]
    return serving(MODEL, [*flags, *more], command="deploy")


@asynccontextmanager
async def through_serve(settings: Mapping[str, int]) -> AsyncIterator[ServedTarget]:
    port = free_port()
    plan = ModelPlan(model=MODEL, name=MODEL, settings=settings, num_cpus=0.0, max_ongoing=4 * settings["slots"])
    ingress = IngressPlan(server={"host": "127.0.0.1", "port": port})
    with cluster.joined(None, num_cpus=2):
        await asyncio.to_thread(cluster.run, arguments_of([plan], ingress), host="127.0.0.1", port=port)
        yield ServedTarget(f"http://127.0.0.1:{port}/v1", "none")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ingress", choices=("own", "serve"), default="own")
    args = parser.parse_args()
    settings = {"slots": max(args.streams), "context_length": CONTEXT, "threads": THREADS}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    workload = Workload(
        prompt_tokens=51, max_tokens=args.tokens, shared_prefix=0, seed=0, rounds=args.pairs, timeout_s=600
    )
    on_ray = through_serve(settings) if args.ingress == "serve" else deployed(settings, flags)
    async with on_ray as there, serving(MODEL, flags) as served:
        sides = [BenchSide(remote("on ray", there.url, there.key)), BenchSide(remote("direct", served.url, served.key))]
        levels = [Closed(streams) for streams in args.streams]
        session = Session(sides, levels, workload)
        await session.prepare()
        before, began = cpu_by_part(), time.monotonic()
        await asyncio.sleep(5)
        idle = since(before, time.monotonic() - began)
        before, began = cpu_by_part(), time.monotonic()
        await session.run(lambda doing, share: None)
        busy_s = time.monotonic() - began
        tokens = args.pairs * args.tokens * sum(level.num_requests for level in levels)
        spent = since(before, 1)
    table = [row(played) for played in session.played]
    token_us = {part: round(1e6 * (seconds - idle[part] * busy_s) / tokens, 1) for part, seconds in spent.items()}
    print(
        json.dumps(
            {
                "model": MODEL,
                "ingress": args.ingress,
                "pairs": args.pairs,
                "table": table,
                "idle_cpu_share": {part: round(share, 4) for part, share in idle.items()},
                "cpu_us_per_token_beyond_idle": token_us,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
