"""The contract's cases of `contract/test_endings.py`, through a deployment handle."""

from __future__ import annotations

import asyncio

from contract.test_endings import *  # noqa: F403
from contract.test_endings import ENDLESS, read_some
from on_ray.ray_rig import RayRig, RigWorker

del test_aclose_frees_the_slot_within_a_step  # noqa: F821 - it counts from the call, and the way there takes some steps

ON_LLAMACPP = (
    "test_a_deadline_carries_what_was_said",
    "test_a_deadline_while_waiting_for_a_slot",
    "test_aclose_returns_when_the_slot_is_free",
    "test_breaking_out_of_the_loop_frees_it_too",
    "test_cancelling_the_reading_task",
    "test_drain_lets_running_ones_end_and_refuses_new_ones",
    "test_forgetting_a_stream_that_was_never_read",
    "test_one_more_than_the_queue_holds_is_refused_at_once",
    "test_out_of_memory_is_typed_and_the_next_request_works",
    "test_stopping_ends_what_runs_and_is_idempotent",
    "test_the_slot_follows_the_engine_not_the_reader",
)


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
