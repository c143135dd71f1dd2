"""Server-sent events out of an answer: JSON objects, until `[DONE]` or the end of the body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused
from drivetrain.engines.remote.wire import MAX_EVENT_BYTES, Answer, Timeouts, parsed


async def events(answer: Answer, key: Key, timeouts: Timeouts) -> AsyncGenerator[dict[str, Any], None]:
    """Raises `Refused` for an error event, and `Broken` for silence, garbage and lines without end.

    A comment, which servers send to keep a connection open, is a sign of life and no event.
    """
    limit_s = timeouts.first_s
    async with aclosing(_lines(answer, key)) as lines:
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    line = await anext(lines, None)
            except TimeoutError as exc:
                raise Broken(f"it sent nothing for {limit_s:g} seconds") from exc
            if line is None or (data := _data(line)) == b"[DONE]":
                return
            if data is None:
                continue
            limit_s = timeouts.idle_s
            yield _event(line, data, key)


async def _lines(answer: Answer, key: Key) -> AsyncGenerator[bytes, None]:
    if answer.status != 200:
        raise Refused.parse(answer.status, answer.headers, await answer.whole(), key)
    if not answer.is_stream:
        raise Broken("its answer is no event stream")
    rest = b""
    parts: AsyncIterator[bytes] = answer.parts()
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
        if len(rest) > MAX_EVENT_BYTES:
            raise Broken("an event does not end")
    if rest:
        yield rest


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
