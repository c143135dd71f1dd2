"""A replica as Serve makes it, asks for its health and takes it down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.deploy.replica import Replica
from drivetrain.telemetry.logs import configure


class ServedReplica(Replica):
    """Serve waits for the calls that run before it takes a replica down, then for `__del__`."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self, model: str, settings: Mapping[str, Any], log: Mapping[str, str]
    ) -> None:
        if log:
            configure(log["form"], log["level"])
        super().__init__(model, settings)
        await self.start()

    async def __del__(self) -> None:
        await self.stop()
