"""A replica as Serve makes it, asks for its health and takes it down."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from drivetrain.scale.ray.observability import observing
from drivetrain.scale.ray.replica import Replica


class ServedReplica(Replica):
    """Serve waits for the calls that run before it takes a replica down, then for `__del__`."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self, model: str, settings: Mapping[str, Any], told: Mapping[str, Any]
    ) -> None:
        super().__init__(model, settings)
        self._stack = ExitStack()
        await self.start(self._stack.enter_context(observing(told)))

    async def __del__(self) -> None:
        await self.stop()
        self._stack.close()
