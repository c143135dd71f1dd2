"""A deployment with a Ray of its own: the replicas are that Ray's, and the server is this process.

No proxy or ingress of Serve's is between a client and the replicas, so all that `drivetrain serve` does at its socket
holds here as well, and a piece of an answer takes one way less.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.core.errors import LoadFailed
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.ray import cluster
from drivetrain.scale.ray.application import workers_of
from drivetrain.scale.ray.handle import HandleWorker
from drivetrain.server.app import create_app
from drivetrain.server.run import Stop, serve
from drivetrain.server.settings import ServerSettings
from drivetrain.telemetry.tracing import GenAiTracer

LOOK_S = 1.0

_log = logging.getLogger(__name__)


async def serve_alone(
    handles: Mapping[str, Any],
    settings: ServerSettings,
    tracer: GenAiTracer | None,
    sock: socket.socket,
    ready: Callable[[Mapping[str, HandleWorker]], None],
) -> None:
    """Until a signal, as `drivetrain serve`. Raises `LoadFailed` for a model of which no replica could be started."""
    workers = workers_of(handles)
    fleet = Fleet.of(workers, replaced=True)
    stop = Stop()

    noted: set[cluster.Told] = set()

    async def start() -> None:
        for worker in workers.values():
            worker.start()
        for worker in workers.values():
            while not await _answers_within(worker, LOOK_S):
                for told in await asyncio.to_thread(cluster.told_of_replicas):
                    if told.failed:
                        raise LoadFailed(f"{told.deployment} could not be started: {told.message}")
                    if told not in noted:
                        noted.add(told)
                        _log.warning("%s: %s", told.deployment, told.message)

    app = create_app(fleet, settings, tracer)
    try:
        with stop.on_signals():
            await serve(app, settings, sock, start=start, drain=fleet.drain, stop=stop, ready=lambda: ready(workers))
    finally:
        for worker in workers.values():
            await worker.stop()


async def _answers_within(worker: HandleWorker, longest_s: float) -> bool:
    try:
        async with asyncio.timeout(longest_s):
            await worker.ready()
    except TimeoutError:
        return False
    return True
