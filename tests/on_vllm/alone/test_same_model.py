"""SmolLM2 in float32 says the same on vLLM as on the native engine, over fifty prompts.

`tests/engines/test_native_smollm2.py` shows that the native engine says what transformers says.
"""

from __future__ import annotations

from typing import Any

import pytest

import drivetrain
from contract.same_model import answers_of, assert_same
from on_vllm.vllm_rig import SETTINGS


@pytest.mark.in_turn(1)
@pytest.mark.timeout(1800)
async def test_both_engines_are_the_same_model(smollm2: str, record_property: Any) -> None:
    async with drivetrain.Worker.open(smollm2, engine="vllm", **SETTINGS) as worker:
        on_vllm = await answers_of(worker)
    async with drivetrain.Worker.open(smollm2, engine="native", dtype="float32", compile="off") as other:
        record_property("native", assert_same(await answers_of(other), on_vllm))
