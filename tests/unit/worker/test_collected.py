"""Whoever hears the events of a request knows what the worker knows that made them."""

from __future__ import annotations

from typing import Any

import pytest

from contract.rigs import FakeRig
from drivetrain.core.events import ChoiceFinished, Delta
from drivetrain.worker.output import Collected


@pytest.mark.parametrize(
    "request_fields",
    [
        {"max_tokens": 5},
        {"max_tokens": 0, "echo": True},
        {"max_tokens": 7, "n": 3, "seed": 1},
        {"max_tokens": 4, "echo": True, "logprobs": 2, "prompt_logprobs": 1},
    ],
    ids=str,
)
async def test_the_events_hold_the_whole_result(request_fields: dict[str, Any]) -> None:
    async with FakeRig().open() as worker, worker.stream(prompt="the quick", **request_fields) as stream:
        collected = Collected(request_fields.get("n", 1), logprobs="logprobs" in request_fields)
        assert collected.is_empty
        async for event in stream:
            if isinstance(event, (Delta, ChoiceFinished)):
                collected.take(event)
        result = stream.result()
    assert collected.choices == result.choices
    assert collected.finish_reasons == [choice.finish_reason for choice in result.choices]
    assert collected.num_tokens == result.usage.completion_tokens
    assert not collected.is_empty
