"""What a request to a replica costs, and each piece of its answer: CPU time on both sides.

Run it with `.venv-ray/bin/python`. It calls the fake engine through a handle with our router, and prints a JSON object
for each way that events can go. It measures CPU time, since the machine may be busy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from ray import serve

from drivetrain.scale.ray import cluster
from drivetrain.scale.ray.handle import HandleWorker
from drivetrain.scale.ray.plan import ModelPlan
from drivetrain.scale.ray.replica import ServedReplica

PROMPT = "Once upon a time there was a small engine that kept its word. " * 20


class Timed(ServedReplica):
    async def cpu_s(self) -> float:
        return time.process_time()


async def spent(handle: Any, worker: HandleWorker, requests: int, tokens: int, streams: int) -> tuple[float, float]:
    """Microseconds per request, here and in the replica."""
    gate = asyncio.Semaphore(streams)

    async def one(number: int) -> None:
        async with gate:
            made = await worker.generate(prompt=f"{PROMPT}{number}", max_tokens=tokens, ignore_eos=True)
        assert made.usage.completion_tokens == tokens

    await asyncio.gather(*(one(number) for number in range(streams)))
    there, here = await handle.cpu_s.remote(), time.process_time()
    await asyncio.gather(*(one(number) for number in range(requests)))
    here = time.process_time() - here
    there = await handle.cpu_s.remote() - there
    return 1e6 * here / requests, 1e6 * there / requests


async def measure(handle: Any, requests: int, streams: int, host: str) -> dict[str, Any]:
    worker = HandleWorker(handle, "fake", host=host)
    worker.start()
    await worker.ready()
    few = await spent(handle, worker, requests, 1, streams)
    many = await spent(handle, worker, requests // 4, 41, streams)
    await worker.stop()
    return {
        "requests": requests,
        "streams": streams,
        "events_go": "over the link" if host else "by the calls",
        "request_of_one_token_us": {"caller": round(few[0]), "replica": round(few[1])},
        "each_further_token_us": {
            "caller": round((many[0] - few[0]) / 40),
            "replica": round((many[1] - few[1]) / 40),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--streams", type=int, default=16)
    args = parser.parse_args()
    plan = ModelPlan(model="fake", name="fake", num_cpus=0.0, max_ongoing=4 * args.streams)
    with cluster.joined(None, num_cpus=2):
        serve.start(proxy_location="Disabled")
        app = serve.deployment(Timed, **plan.options).bind("fake", {"max_running": args.streams}, {})
        handle = serve.run(app, name="calls", route_prefix=None)
        for host in ("127.0.0.1", ""):
            print(json.dumps(asyncio.run(measure(handle, args.requests, args.streams, host)), indent=2))


if __name__ == "__main__":
    main()
