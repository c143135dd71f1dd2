"""Events out of an answer's bytes, and how long one may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import TooLong, is_fault, may_try_again
from drivetrain.engines.remote.events import MAX_EVENT_BYTES, events, most_bytes
from drivetrain.engines.remote.wire import Answer, Timeouts


def request(prompt: int, **changes: Any) -> EngineRequest:
    ids = (0,) * prompt
    return EngineRequest(request_id="r", prompt_ids=ids, context_length=10**6, max_tokens=1, seeds=(1,), **changes)


async def heard(*parts: bytes, most: int = MAX_EVENT_BYTES) -> list[dict[str, Any]]:
    class Given(Answer):
        async def parts(self) -> AsyncIterator[bytes]:
            for part in parts:
                yield part

    answer = Given(200, {"content-type": "text/event-stream"}, asyncio.StreamReader())
    return [event async for event in events(answer, Key(), Timeouts(), most)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_do_not_depend_on_how_they_come(size: int) -> None:
    data = b': hello\r\n\r\ndata: {"a": 1}\r\n\r\ndata:{"b": "\xc3\xa4"}\n\ndata: {"c": 3}'
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    assert await heard(*parts) == [{"a": 1}, {"b": "ä"}, {"c": 3}]
    assert await heard(*parts, b"\n\ndata: [DONE]\n\ndata: 5") == [{"a": 1}, {"b": "ä"}, {"c": 3}]


async def test_the_logprobs_of_a_long_prompt_are_one_event() -> None:
    """In the widest form that vLLM has for them."""
    count, top = 5000, 20
    ids = [151_935 - i for i in range(top + 1)]
    ranked = {f"token_id:{i}": -12.345678901234567 for i in ids}
    logprobs = {
        "text_offset": [1_000_000] * count,
        "token_logprobs": [-12.345678901234567] * count,
        "tokens": ["token_id:151935"] * count,
        "top_logprobs": [ranked] * count,
    }
    line = f"data: {json.dumps({'choices': [{'logprobs': logprobs, 'prompt_token_ids': ids * 239}]})}\n\n".encode()
    parts = [line[at : at + 65536] for at in range(0, len(line), 65536)]
    assert len(line) > MAX_EVENT_BYTES
    (event,) = await heard(*parts, most=most_bytes(request(count, prompt_logprobs=top)))
    assert len(event["choices"][0]["logprobs"]["top_logprobs"]) == count
    with pytest.raises(TooLong):
        await heard(*parts, most=most_bytes(request(count, logprobs=top)))


def test_what_is_too_long_for_one_request_is_nobodys_fault() -> None:
    assert not is_fault(TooLong("x"))
    assert not may_try_again(TooLong("x"))
    assert most_bytes(request(5000)) == most_bytes(request(5000, logprobs=20)) == MAX_EVENT_BYTES
