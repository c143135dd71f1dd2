"""A client that leaves: its request ends, and its place is free.

The server's own gauges show that. If it has none, its next answer does: many long requests are started and left, and
then a short one must not wait for them.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack
from typing import Any

from drivetrain.tools.conform.answers import Api
from drivetrain.tools.conform.case import BY_ENDPOINT, Area, Cases
from drivetrain.tools.conform.client import Broken, Unreachable
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotRun, ensure

CASES = Cases(Area.CANCEL, BY_ENDPOINT)
case = CASES.case

LONG_TOKENS = 3000
FREE_WITHIN_S = 2.0
"""One more step, a prefill chunk included, on a slow machine."""

WORTH_S = 2 * FREE_WITHIN_S
"""An answer that needs less time than this would finish anyway, so leaving it shows nothing."""

MANY = 16
_GAUGES = re.compile(
    r"^(?:drivetrain_requests_running|vllm:num_requests_running|llamacpp:requests_processing"
    r"|sglang:num_running_reqs|tgi_batch_current_size)(?:\{[^}]*\})?[ \t]+(\d{1,15}(?:\.\d*)?)(?!\S)",
    re.MULTILINE,
)


@case(
    "streamed", asks="a long stream, left after its first events", holds=f"its place is free within {FREE_WITHIN_S:g} s"
)
async def _streamed(t: Trial) -> None:
    api, body = await _long(t)
    before = await _at_rest(t)
    exchange = t.prepared("POST", t.base + api.path, {**body, "stream": True})
    async with t.client.response(exchange) as parts:
        await _worth_leaving(exchange, parts, body["max_tokens"])
        if before is not None:
            during = await _running(t) or 0
            ensure(during > before, f"the gauge says {during} while a request runs, {before} before it")
    await _is_free(t, api, before)


@case("whole", asks="a long answer that is not streamed, left while it runs", holds="the same")
async def _whole(t: Trial) -> None:
    api, body = await _long(t)
    before = await _at_rest(t)
    if before is None:
        raise NotRun("the server has no gauge of running requests")
    exchange = t.prepared("POST", t.base + api.path, {**body, "stream": True})
    async with t.client.response(exchange) as parts:
        await _worth_leaving(exchange, parts, body["max_tokens"])
    await _is_free(t, api, before)
    async with t.client.unanswered(t.prepared("POST", t.base + api.path, body)):
        await _wait(t, lambda running: running > before, "the request does not start running")
    await _is_free(t, api, before)


@case("next", asks="a short answer after a stream that was left", holds="it is answered, in full")
async def _next(t: Trial) -> None:
    api, body = await _long(t)
    sample = await t.known.sample()
    exchange = t.prepared("POST", t.base + api.path, {**body, "stream": True})
    async with t.client.response(exchange) as parts:
        await anext(parts, b"")
    answer = await t.generate(sample.api, **sample.fields)
    ensure(answer.text == sample.text, "after a client has left, the same request gets a different answer")


@case("many", asks=f"{MANY} long streams, all left at once, then a short request", holds="it does not wait for them")
async def _many(t: Trial) -> None:
    api, body = await _long(t)
    began = time.perf_counter()
    await t.generate(api, max_tokens=1)
    alone_s = time.perf_counter() - began
    first = t.prepared("POST", t.base + api.path, {**body, "stream": True})
    async with t.client.response(first) as parts:
        await _worth_leaving(first, parts, body["max_tokens"])
    async with AsyncExitStack() as stack:
        for _ in range(MANY):
            leaving = RecordedExchange(method="POST", path=first.path, headers=first.headers, body=first.body)
            await stack.enter_async_context(t.client.unanswered(leaving))
        await asyncio.sleep(0.5)
    began = time.perf_counter()
    try:
        await t.generate(api, max_tokens=1)
    except Unreachable:
        raise
    except Broken as exc:
        raise Failed(f"the next request is not answered, so those that were left are still running: {exc}") from None
    took_s = time.perf_counter() - began
    late = f"the next request took {took_s:.1f} s; before, {alone_s:.1f} s: those that were left are still running"
    ensure(took_s <= 3 * alone_s + FREE_WITHIN_S, late)


async def _long(t: Trial) -> tuple[Api, dict[str, Any]]:
    api = await t.known.text_api()
    tokens = await t.known.long_tokens(LONG_TOKENS)
    if tokens < 64:
        raise NotRun("the context is too short for a long answer")
    return api, t.body(api, max_tokens=tokens, **await t.known.steady(api))


async def _worth_leaving(exchange: RecordedExchange, parts: Any, tokens: int) -> None:
    """Read the stream for a moment. Raises `NotRun` if it is so quick that leaving it would show nothing."""
    began = time.perf_counter()
    async for part in parts:
        exchange.reply += part
        num, took_s = exchange.reply.count(b"data:"), time.perf_counter() - began
        if num >= 8 and took_s > 0.3:
            left_s = (tokens - num) * took_s / num
            if left_s < WORTH_S:
                raise NotRun(f"the answer would have finished in {left_s:.1f} s anyway")
            return
    if exchange.status != 200:
        raise Failed(f"a long request of {tokens} tokens is answered with status {exchange.status}")
    raise NotRun("the answer finished before the client could leave")


async def _running(t: Trial) -> int | None:
    """How many requests are running, by the server's own gauges; None if it has none."""
    for path in ("/status", "/metrics", "/slots"):
        exchange = await t.ask("GET", t.root + path)
        t.exchanges.remove(exchange)
        if exchange.status != 200:
            continue
        found = _gauge(path, exchange)
        if found is not None:
            return found
    return None


async def _at_rest(t: Trial) -> int | None:
    """`_running` before a case begins: the request of the previous case may be answered but not gone yet."""
    end = time.perf_counter() + FREE_WITHIN_S
    while running := await _running(t):
        if time.perf_counter() > end:
            break
        await asyncio.sleep(0.05)
    return running


def _gauge(path: str, exchange: RecordedExchange) -> int | None:
    if path == "/metrics":
        values = _GAUGES.findall(exchange.reply.decode("utf-8", "replace"))
        return int(sum(map(float, values))) if values else None
    if path == "/slots":
        try:
            slots = exchange.json()
        except Failed:
            return None
        is_list = isinstance(slots, list)
        return sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict)) if is_list else None
    running = exchange.document.get("running")
    return running if isinstance(running, int) else None


async def _is_free(t: Trial, api: Api, before: int | None) -> None:
    if before is None:
        raise NotRun("the server has no gauge of running requests; see cancel.many")
    await _wait(
        t, lambda running: running <= before, f"{FREE_WITHIN_S:g} s after the client left, its request is still running"
    )


async def _wait(t: Trial, holds: Any, otherwise: str) -> None:
    end = time.perf_counter() + FREE_WITHIN_S
    while not holds(await _running(t) or 0):
        if time.perf_counter() > end:
            raise Failed(otherwise)
        await asyncio.sleep(0.05)
