"""A deployment with a private Ray: Ray runs the replicas, and the server is this process.

There is no proxy or ingress of Serve's in between, so everything that `drivetrain serve` does at its socket holds here
as well, and a piece of an answer takes one hop less.
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

POLL_S = 1.0

_log = logging.getLogger(__name__)


async def serve_alone(
    handles: Mapping[str, Any],
    settings: ServerSettings,
    tracer: GenAiTracer | None,
    sock: socket.socket,
    ready: Callable[[Mapping[str, HandleWorker]], None],
) -> None:
    """Serve until a signal, as `drivetrain serve` does. Raises `LoadFailed` if no replica of a model can be started."""
    workers = workers_of(handles)
    fleet = Fleet.of(workers, replaced=True)
    stop = Stop()
    logged: set[cluster.DeploymentMessage] = set()

    async def start() -> None:
        for worker in workers.values():
            worker.start()
        for worker in workers.values():
            while not await _is_ready_within(worker, POLL_S):
                for message in await asyncio.to_thread(cluster.deployment_messages):
                    if message.failed:
                        raise LoadFailed(f"{message.deployment} could not be started: {message.text}")
                    if message not in logged:
                        logged.add(message)
                        _log.warning("%s: %s", message.deployment, message.text)

    app = create_app(fleet, settings, tracer)
    try:
        with stop.on_signals():
            await serve(app, settings, sock, start=start, drain=fleet.drain, stop=stop, ready=lambda: ready(workers))
    finally:
        for worker in workers.values():
            await worker.stop()


async def _is_ready_within(worker: HandleWorker, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await worker.ready()
    except TimeoutError:
        return False
    return True
