"""A Ray to deploy on, the one that runs or one of our own, and how Serve should run there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.scale.ray.plan import APPLICATION

ENVIRONMENT = {
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What a cluster is best started with: Serve reads it from the environment of its own processes, such as the proxy.

Pieces of an answer go from the ingress to the proxy by gRPC, which is cheaper than Ray's object references.
"""

OWN = {
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
"""Of a Ray of our own beside that: nobody reads what it measures of itself, and a few processes need no quicker looks.

Idle, all of Ray takes 9 % of a core so, and 16 % without: cores that the engine is on.
"""

_OURS = re.compile(r"^drivetrain\.[\w.]+: ")

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a Ray of our own. What passes through it is requests and pieces of text."""


@contextlib.contextmanager
def joined(address: str | None, *, num_cpus: int | None = None) -> Iterator[None]:
    """Connected to Ray. Without an address it is a new one, which ends on leaving."""
    import ray

    if address is not None:
        ray.init(address=address, log_to_driver=False)
    else:
        os.environ.update({name: value for name, value in {**ENVIRONMENT, **OWN}.items() if name not in os.environ})
        terminated = signal.getsignal(signal.SIGTERM)
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated)  # Ray's own would end this process as if nothing had been asked
    try:
        yield
    finally:
        ray.shutdown()


def run(arguments: dict[str, Any], *, host: str, port: int) -> None:
    """Deploy, or roll what is deployed over to these arguments. Returns once all of it runs."""
    from ray import serve

    from drivetrain.scale.ray.application import build

    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    serve.run(build(arguments), name=APPLICATION, route_prefix="/")


@contextlib.contextmanager
def replicas(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """While entered, Serve runs the replicas of these arguments, and no server: a handle for each model, at once.

    They are let go one by one, so that each sends what it has still to tell of its traces.
    """
    from ray import serve

    from drivetrain.scale.ray.application import model_of

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled")
    told, models = arguments.get("telling", {}), arguments["models"]
    targets = [serve.RunTarget(model_of(m, told), name=m["options"]["name"], route_prefix=None) for m in models]
    handles = serve.run_many(targets, wait_for_applications_running=False)
    try:
        yield {model["settings"]["name"]: handle for model, handle in zip(models, handles, strict=True)}
    finally:
        with contextlib.suppress(TimeoutError):  # Serve's own, after a minute; what is left then ends with its Ray
            for target in targets:
                serve.delete(target.name)


@dataclass(frozen=True, slots=True)
class Told:
    """What Serve says of a deployment: where a replica could not be started, the last line of a traceback."""

    deployment: str
    failed: bool
    message: str


def told_of_replicas() -> list[Told]:
    """Of those of which it says anything."""
    from ray import serve

    deployments = [each for app in serve.status().applications.values() for each in app.deployments.items()]
    return [
        Told(name, status.status == "DEPLOY_FAILED", _OURS.sub("", status.message.strip().rpartition("\n")[2]))
        for name, status in deployments
        if status.message.strip()
    ]
