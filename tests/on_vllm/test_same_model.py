"""SmolLM2 in float32 says the same on vLLM as on the native engine and on transformers, over fifty prompts."""

from __future__ import annotations

from typing import Any

import pytest

import drivetrain
from contract.same_model import answers_of, assert_same
from drivetrain.worker.worker import EngineWorker


@pytest.mark.timeout(1800)
async def test_three_engines_are_the_same_model(smollm2: str, worker: EngineWorker, record_property: Any) -> None:
    on_vllm = await answers_of(worker)
    for engine in ("native", "transformers"):
        async with drivetrain.Worker.open(smollm2, engine=engine, dtype="float32") as other:
            record_property(engine, assert_same(await answers_of(other), on_vllm))
