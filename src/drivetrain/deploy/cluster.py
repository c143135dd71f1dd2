"""A Ray to deploy on, the one that runs or one of our own, and how Serve should run there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.deploy.plan import APPLICATION

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
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    try:
        yield
    finally:
        ray.shutdown()


def run(arguments: dict[str, Any], *, host: str, port: int) -> None:
    """Deploy, or roll what is deployed over to these arguments. Returns once all of it runs."""
    from ray import serve

    from drivetrain.deploy.application import build

    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    serve.run(build(arguments), name=APPLICATION, route_prefix="/")


def run_models(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Let Serve start the replicas of these arguments, and no server: a handle for each model, at once."""
    from ray import serve

    from drivetrain.deploy.application import model_of

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled")
    told, models = arguments.get("telling", {}), arguments["models"]
    targets = [serve.RunTarget(model_of(m, told), name=m["options"]["name"], route_prefix=None) for m in models]
    handles = serve.run_many(targets, wait_for_applications_running=False)
    return {model["settings"]["name"]: handle for model, handle in zip(models, handles, strict=True)}


def failures() -> dict[str, str]:
    """The deployments that could not be started, and why: of what Serve says, a traceback, the last line."""
    from ray import serve

    deployments = [each for app in serve.status().applications.values() for each in app.deployments.items()]
    failed = {name: told.message for name, told in deployments if told.status == "DEPLOY_FAILED"}
    return {name: _OURS.sub("", message.strip().rpartition("\n")[2]) for name, message in failed.items()}
