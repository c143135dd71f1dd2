"""The Ray to deploy on, a running one or a private one, and what Serve runs there."""

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

from drivetrain.scale.ray.plan import APPLICATION, OBSERVABILITY

ENVIRONMENT = {
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What a cluster is best started with: Serve's own processes, such as the proxy, read it from their environment.

Pieces of an answer go from the ingress to the proxy by gRPC, which is cheaper than Ray's object references.
"""

PRIVATE_ENVIRONMENT = {
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000",
    "RAY_enable_metrics_collection": "0",
    "RAY_event_stats": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
"""More for a private Ray: nobody reads its own metrics, and a few processes need no quicker control loop.

With it an idle Ray takes 9 % of a core, without it 16 %, on the machine that the engine runs on.
"""

_OUR_ERROR_CLASS = re.compile(r"^drivetrain\.[\w.]+: ")

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a private Ray, which only carries requests and pieces of text."""


@contextlib.contextmanager
def joined(address: str | None, *, num_cpus: int | None = None) -> Iterator[None]:
    """While entered, connected to Ray: the one at the address, or else a private one that ends on leaving."""
    import ray

    if address is not None:
        ray.init(address=address, log_to_driver=False)
    else:
        for name, value in {**ENVIRONMENT, **PRIVATE_ENVIRONMENT}.items():
            os.environ.setdefault(name, value)
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
            signal.signal(signal.SIGTERM, terminated)  # Ray's own handler would end this process without a drain
    try:
        yield
    finally:
        ray.shutdown()


def run(arguments: dict[str, Any], *, host: str, port: int) -> None:
    """Deploy, or update what is deployed to these arguments. Returns once all of it runs."""
    from ray import serve

    from drivetrain.scale.ray.application import build

    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    serve.run(build(arguments), name=APPLICATION, route_prefix="/")


@contextlib.contextmanager
def replicas(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """While entered, Serve runs the replicas of these arguments, without a server. Handles by model name, at once.

    On leaving, the replicas are stopped one by one, so that each can send the rest of its traces.
    """
    from ray import serve

    from drivetrain.scale.ray.application import model_of

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled")
    observability, models = arguments.get(OBSERVABILITY, {}), arguments["models"]
    targets = [
        serve.RunTarget(model_of(m, observability), name=m["options"]["name"], route_prefix=None) for m in models
    ]
    handles = serve.run_many(targets, wait_for_applications_running=False)
    try:
        yield {model["settings"]["name"]: handle for model, handle in zip(models, handles, strict=True)}
    finally:
        with contextlib.suppress(TimeoutError):  # Serve's own, after a minute; what is left ends with its Ray
            for target in targets:
                serve.delete(target.name)


@dataclass(frozen=True, slots=True)
class DeploymentMessage:
    """What Serve says about a deployment. If a replica could not be started, that is the last line of a traceback."""

    deployment: str
    failed: bool
    text: str


def deployment_messages() -> list[DeploymentMessage]:
    from ray import serve

    deployments = [each for app in serve.status().applications.values() for each in app.deployments.items()]
    return [
        DeploymentMessage(name, status.status == "DEPLOY_FAILED", _last_line(status.message))
        for name, status in deployments
        if status.message.strip()
    ]


def _last_line(message: str) -> str:
    """Without the class, if that is an error of ours."""
    return _OUR_ERROR_CLASS.sub("", message.strip().rpartition("\n")[2])
