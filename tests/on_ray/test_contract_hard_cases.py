"""The contract's cases of `contract/test_hard_cases.py`, through a deployment handle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.test_hard_cases import *  # noqa: F403
from drivetrain.core.errors import ContextOverflow, InvalidRequest
from on_ray.ray_rig import RigWorker

del test_an_unreadable_device_hides_no_ending  # noqa: F821 - it breaks an engine object of its own process
del test_sizes_are_judged_before_contents  # noqa: F821 - Ray alone takes seconds to carry what the last of them holds

ON_LLAMACPP = (
    "test_a_stop_that_was_cancelled_goes_on_and_a_second_waits",
    "test_embeddings_keep_their_deadline_and_free_the_engine",
)


async def test_sizes_are_judged_before_what_is_sent(worker: RigWorker) -> None:
    async with asyncio.timeout(5):
        for name in ("stop", "bad_words_ids", "suppress_tokens"):
            asked: dict[str, Any] = {name: ["x"] * 1_000_000}
            with pytest.raises(InvalidRequest) as caught:
                await worker.generate(prompt="x", **asked)
            assert (caught.value.param or "").partition("[")[0] == name


async def test_a_prompt_of_any_length_has_its_answer(worker: RigWorker) -> None:
    async with asyncio.timeout(60):
        with pytest.raises((ContextOverflow, InvalidRequest)):
            await worker.generate(prompt_token_ids=[1] * 3_000_000, max_tokens=1)
