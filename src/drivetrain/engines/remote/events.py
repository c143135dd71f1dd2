"""Server-sent events out of an answer: JSON objects, until `[DONE]` or the end of the body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from drivetrain.core.engine import EngineRequest
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused
from drivetrain.engines.remote.wire import MAX_BODY_BYTES, Timeouts, parsed
from drivetrain.http.client import HttpAnswer
from drivetrain.http.events import DONE, EventParser

MAX_EVENT_BYTES = 2**22
"""Of any event except the one with the logprobs of a prompt."""

_ALTERNATIVE_BYTES = 64
"""One id with its logprob, as `"token_id:151935": -12.345678901234567, `, and a token in each list beside them."""


def most_bytes(request: EngineRequest) -> int:
    """How long an event of this request may be: the logprobs of a prompt come in one."""
    if request.prompt_logprobs is None:
        return MAX_EVENT_BYTES
    alternatives = max(request.prompt_logprobs, request.logprobs or 0) + 4
    return MAX_EVENT_BYTES + len(request.prompt_ids) * alternatives * _ALTERNATIVE_BYTES


async def events(
    answer: HttpAnswer, key: Key, timeouts: Timeouts, most: int = MAX_EVENT_BYTES
) -> AsyncGenerator[dict[str, Any], None]:
    """Raises `Refused` for an error event, `Broken` for silence and garbage, `TooLong` for an event past `most` bytes.

    The time for the first event counts from the request. A comment, which servers send to keep a connection open, is a
    sign of life but no event; a part of a line is neither.
    """
    if answer.status != 200:
        try:
            async with asyncio.timeout_at(answer.asked_at + timeouts.first_s):
                body = await answer.whole(MAX_BODY_BYTES)
        except TimeoutError as exc:
            raise Broken(f"it sent nothing for {timeouts.first_s:g} seconds") from exc
        raise Refused.parse(answer.status, answer.headers, body, key)
    if not answer.is_stream:
        raise Broken("its answer is not an event stream")
    limit_s, heard_at, now = timeouts.first_s, answer.asked_at, asyncio.get_running_loop().time
    parser = EventParser(most)
    async with aclosing(answer.parts()) as parts:
        part: bytes | None = b""
        while part is not None:
            try:
                async with asyncio.timeout_at(heard_at + limit_s):
                    part = await anext(parts, None)
            except TimeoutError as exc:
                raise Broken(f"it sent nothing for {limit_s:g} seconds") from exc
            for name, data in parser.end() if part is None else parser.feed(part):
                if data == DONE:
                    return
                limit_s = timeouts.idle_s
                yield _event(name, data, key)
            if part is not None and b"\n" in part:
                heard_at = now()  # after the yield: a slow reader is not the upstream's silence


def _event(name: bytes, data: bytes, key: Key) -> dict[str, Any]:
    event = parsed(data)
    if not isinstance(event, dict):
        raise Broken("an event is not a JSON object")
    if name == b"error" or event.get("error") or event.get("object") == "error":
        code = (event.get("error") or event).get("code") if isinstance(event.get("error") or event, dict) else None
        raise Refused.of_json(code if isinstance(code, int) and 400 <= code < 600 else 500, event, key)
    return event
