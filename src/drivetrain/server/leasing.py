"""A request holds its model while it is answered, and waits for one that is not loaded: no longer than its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from starlette.types import Receive

from drivetrain.core.errors import Cancelled
from drivetrain.core.worker import Worker
from drivetrain.server.answering import gone
from drivetrain.server.models import Models
from drivetrain.server.translate import Asked

T = TypeVar("T")


@asynccontextmanager
async def leased(
    models: Models, name: str, receive: Receive, timeout_s: float | None = None
) -> AsyncIterator[tuple[Worker, float | None]]:
    """The model's worker, and the rest of the request's time where it had to wait for it (None: it did not).

    A client that leaves while it waits gives up its place.
    """
    lease = models.lease(name, timeout_s)
    try:
        worker = lease.worker
        if worker is None:
            worker = await unless_gone(lease.wait(), receive)
        yield worker, lease.left_s
    finally:
        lease.release()


def within(asked: Asked, left_s: float | None) -> Asked:
    """The same with what the wait left of its time."""
    if left_s is None:
        return asked
    return replace(asked, requests=tuple(replace(request, timeout_s=left_s) for request in asked.requests))


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What `work` gives. When the client leaves first, `work` is cancelled, which frees what it holds."""
    task = asyncio.create_task(work)
    listener = asyncio.create_task(gone(receive))
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("the client went away")
        return task.result()
    finally:
        for pending in (task, listener):
            pending.cancel()
        await asyncio.gather(task, listener, return_exceptions=True)
