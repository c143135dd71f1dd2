"""Events out of an answer's bytes, and how long one may be."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, TooLong, is_fault, may_try_again
from drivetrain.engines.remote.events import MAX_EVENT_BYTES, events, most_bytes
from drivetrain.engines.remote.wire import Timeouts
from drivetrain.http.client import HttpAnswer
from drivetrain.http.parser import AnswerParser


def request(prompt: int, **changes: Any) -> EngineRequest:
    ids = (0,) * prompt
    return EngineRequest(request_id="r", prompt_ids=ids, context_length=10**6, max_tokens=1, seeds=(1,), **changes)


def stream_head() -> AnswerParser:
    parser = AnswerParser()
    parser.head(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    return parser


async def heard(
    *parts: bytes, most: int = MAX_EVENT_BYTES, asked_s_ago: float = 0.0, pause_s: float = 0.0, hang: bool = False
) -> list[dict[str, Any]]:
    class Given(HttpAnswer):
        async def parts(self) -> AsyncGenerator[bytes, None]:
            for part in parts:
                await asyncio.sleep(pause_s)
                yield part
            if hang:
                await asyncio.Event().wait()

    asked_at = asyncio.get_running_loop().time() - asked_s_ago
    answer = Given(stream_head(), b"", asyncio.StreamReader(), asked_at)
    return [event async for event in events(answer, Key(), Timeouts(first_s=60.0, idle_s=0.1), most)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_do_not_depend_on_how_they_come(size: int) -> None:
    data = b': hello\r\n\r\ndata: {"a": 1}\r\n\r\ndata:{"b": "\xc3\xa4"}\n\ndata: {"c": 3}'
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    assert await heard(*parts) == [{"a": 1}, {"b": "ä"}, {"c": 3}]
    assert await heard(*parts, b"\n\ndata: [DONE]\n\ndata: 5") == [{"a": 1}, {"b": "ä"}, {"c": 3}]


@pytest.mark.parametrize("asked_s_ago", [61.0, 59.9])
async def test_what_the_head_took_is_taken_from_the_first_event(asked_s_ago: float) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(Broken, match="nothing for 60 seconds"):
            await heard(hang=True, asked_s_ago=asked_s_ago)


async def test_a_comment_is_a_sign_of_life() -> None:
    assert await heard(b": hello\n", b'data: {"a": 1}', asked_s_ago=59.0, pause_s=0.6) == [{"a": 1}]


async def test_behind_an_event_there_is_another_limit() -> None:
    with pytest.raises(Broken, match=r"nothing for 0\.1 seconds"):
        await heard(b'data: {"a": 1}\n\n', hang=True, asked_s_ago=50.0)


async def test_a_reader_that_takes_its_time_is_no_silence() -> None:
    class Given(HttpAnswer):
        async def parts(self) -> AsyncGenerator[bytes, None]:
            for name in (b"a", b"b"):
                await asyncio.sleep(0)
                yield b'data: {"%s": 1}\n\n' % name

    asked_at = asyncio.get_running_loop().time()
    answer, seen = Given(stream_head(), b"", asyncio.StreamReader(), asked_at), []
    async for event in events(answer, Key(), Timeouts(idle_s=0.05)):
        seen.append(event)
        await asyncio.sleep(0.2)
    assert seen == [{"a": 1}, {"b": 1}]


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


def test_that_we_can_open_no_more_files_is_not_the_fault_of_an_upstream() -> None:
    assert not is_fault(OSError(errno.EMFILE, "Too many open files"))
    assert is_fault(OSError(errno.ECONNREFUSED, "Connection refused"))
    assert may_try_again(OSError(errno.EMFILE, "Too many open files"))


def test_what_is_too_long_for_one_request_is_nobodys_fault() -> None:
    assert not is_fault(TooLong("x"))
    assert not may_try_again(TooLong("x"))
    assert most_bytes(request(5000)) == most_bytes(request(5000, logprobs=20)) == MAX_EVENT_BYTES
