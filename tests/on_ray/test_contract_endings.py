"""The contract's cases of `contract/test_endings.py`, through a deployment handle."""

from __future__ import annotations

import asyncio

from contract.test_endings import *  # noqa: F403
from contract.test_endings import ENDLESS, read_some
from on_ray.ray_rig import RayRig, RigWorker

del test_aclose_frees_the_slot_within_a_step  # noqa: F821 - it counts from the call, and the way there takes some steps


async def test_aclose_returns_when_the_slot_is_free(rig: RayRig, worker: RigWorker) -> None:
    stream = worker.stream(**ENDLESS)
    await read_some(stream, 4)
    async with asyncio.timeout(10):
        await stream.aclose()
    assert worker.status.running == 0
    if rig.by_calls:  # where Ray says that a call is cancelled before its replica has heard of it
        async with asyncio.timeout(10):
            while not rig.idle(worker):
                await asyncio.sleep(0.01)
    assert rig.idle(worker)
    steps = rig.steps(worker)
    await asyncio.sleep(0.1)
    assert rig.steps(worker) == steps
    await stream.aclose()
    assert (await worker.generate(**{**ENDLESS, "max_tokens": 3})).usage.completion_tokens == 3
