"""One request to a usable upstream, and to another one as long as nothing has come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from drivetrain.core.errors import NotReady
from drivetrain.engines.remote.errors import may_be_the_request, may_have_died_of_it, may_try_again
from drivetrain.engines.remote.pool import Pool, Upstream

MAX_ATTEMPTS = 3
MAX_ENDED = 2
"""Upstreams that were gone in the middle of the request or failed on it: it may be what they died of."""

PAUSE_S = 0.1
"""Before the same upstream is asked again; doubles each time."""

T = TypeVar("T")
Ask = Callable[[Upstream], Awaitable[T]]


async def attempted(pool: Pool, ask: Ask[T], *, begun: Callable[[], bool] = lambda: False) -> T:
    """What `ask` returns. Raises what its last attempt raised; there is none after an answer that has `begun`."""
    tried: list[Upstream] = []
    ended = 0
    while True:
        upstream = pool.take(tried)
        try:
            return await _recorded(upstream, ask)
        except Exception as exc:
            tried.append(upstream)
            ended += may_have_died_of_it(exc) or may_be_the_request(exc)
            if begun() or not may_try_again(exc) or len(tried) >= MAX_ATTEMPTS or ended >= MAX_ENDED:
                raise
            await _pause(pool, tried, exc)


async def _recorded(upstream: Upstream, ask: Ask[T]) -> T:
    failure: BaseException | None = None
    began = upstream.begin()
    try:
        return await ask(upstream)
    except BaseException as exc:
        failure = exc
        raise
    finally:
        upstream.end(began, failure)


async def _pause(pool: Pool, tried: list[Upstream], exc: Exception) -> None:
    """No wait if another upstream is free. Raises `exc` if none is left."""
    try:
        following = pool.take(tried)
    except NotReady:
        raise exc from None
    if following in tried:
        if may_be_the_request(exc):
            raise exc
        await asyncio.sleep(PAUSE_S * 2 ** (len(tried) - 1))
