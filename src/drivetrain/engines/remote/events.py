"""Server-sent events out of an answer: JSON objects, until `[DONE]` or the end of the body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused, TooLong
from drivetrain.engines.remote.wire import Answer, Timeouts, parsed

MAX_EVENT_BYTES = 2**22
"""Of any event but the one with the logprobs of a prompt."""

_ALTERNATIVE_BYTES = 64
"""One id with its logprob, as `"token_id:151935": -12.345678901234567, `; and a token in each list beside those."""


def most_bytes(request: EngineRequest) -> int:
    """How long an event of this request may be: the logprobs of a prompt come in one."""
    if request.prompt_logprobs is None:
        return MAX_EVENT_BYTES
    alternatives = max(request.prompt_logprobs, request.logprobs or 0) + 4
    return MAX_EVENT_BYTES + len(request.prompt_ids) * alternatives * _ALTERNATIVE_BYTES


async def events(
    answer: Answer, key: Key, timeouts: Timeouts, most: int = MAX_EVENT_BYTES
) -> AsyncGenerator[dict[str, Any], None]:
    """Raises `Refused` for an error event, `Broken` for silence and garbage, `TooLong` for an event past `most` bytes.

    The first event is waited for from when the answer was asked for. A comment, which servers send to keep a connection
    open, is a sign of life and no event.
    """
    limit_s, heard_at, now = timeouts.first_s, answer.asked_at, asyncio.get_running_loop().time
    async with aclosing(_lines(answer, key, most)) as lines:
        while True:
            try:
                async with asyncio.timeout_at(heard_at + limit_s):
                    line = await anext(lines, None)
            except TimeoutError as exc:
                raise Broken(f"it sent nothing for {limit_s:g} seconds") from exc
            if line is None or (data := _data(line)) == b"[DONE]":
                return
            if data is not None:
                limit_s = timeouts.idle_s
                yield _event(line, data, key)
            heard_at = now()  # behind the yield: how long its reader takes is not the upstream's silence


async def _lines(answer: Answer, key: Key, most: int) -> AsyncGenerator[bytes, None]:
    if answer.status != 200:
        raise Refused.parse(answer.status, answer.headers, await answer.whole(), key)
    if not answer.is_stream:
        raise Broken("its answer is no event stream")
    begun = bytearray()
    parts: AsyncIterator[bytes] = answer.parts()
    async for part in parts:
        *whole, rest = part.split(b"\n")
        for line in whole:
            begun += line
            yield bytes(begun).rstrip(b"\r")
            begun.clear()
        begun += rest
        if len(begun) > most:
            raise TooLong("an event does not end")
    if begun:
        yield bytes(begun)


def _data(line: bytes) -> bytes | None:
    name, _, value = line.partition(b":")
    return value.strip() or None if name in {b"data", b"error"} else None


def _event(line: bytes, data: bytes, key: Key) -> dict[str, Any]:
    event = parsed(data)
    if not isinstance(event, dict):
        raise Broken("an event is no object")
    if line.startswith(b"error:") or event.get("error") or event.get("object") == "error":
        code = (event.get("error") or event).get("code") if isinstance(event.get("error") or event, dict) else None
        raise Refused.of_json(code if isinstance(code, int) and 400 <= code < 600 else 500, event, key)
    return event
