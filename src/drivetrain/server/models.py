"""The models of one server by name. One today; every lookup goes through here, so that more may come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

from drivetrain.core.errors import ModelNotFound
from drivetrain.core.status import State
from drivetrain.core.worker import Worker


class Models:
    """`created` is when the server took them up, in seconds of the epoch."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        assert workers
        self._workers = dict(workers)
        self.created = int(time.time())

    def __iter__(self) -> Iterator[tuple[str, Worker]]:
        return iter(self._workers.items())

    def find(self, name: str) -> Worker:
        worker = self._workers.get(name)
        if worker is None:
            shown = name if len(name) <= 100 else name[:97] + "..."
            raise ModelNotFound(f"there is no model {shown!r} here; /v1/models lists what there is", param="model")
        return worker

    def find_or_only(self, name: str | None) -> tuple[str, Worker]:
        """The named one; where there is only one, it need not be named."""
        if name is not None:
            return name, self.find(name)
        if len(self._workers) > 1:
            raise ModelNotFound("model is missing, and there is more than one here", param="model")
        return next(iter(self))

    @property
    def ready(self) -> bool:
        """Whether every model takes requests and its engine lives."""
        return all(w.state is State.READY and w.status.engine_alive for _, w in self)

    async def drain(self, grace_s: float | None = None) -> None:
        """Each one takes no more requests, and returns when its running ones have ended or were ended."""
        async with asyncio.TaskGroup() as group:
            for _, worker in self:
                group.create_task(worker.drain(grace_s))
