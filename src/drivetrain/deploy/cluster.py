"""A Ray to deploy on, the one that runs or one of our own, and how Serve should run there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from drivetrain.deploy.plan import APPLICATION
from drivetrain.server.settings import ServerSettings

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
}
"""Of a Ray of our own beside that: nobody reads what it measures of itself, and a few processes need no quicker looks.

Idle, all of Ray takes 9 % of a core so, and 16 % without: cores that the engine is on.
"""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a Ray of our own. What passes through it is requests and pieces of text."""


def check_server(server: Mapping[str, Any], key: str) -> None:
    """Raises `InvalidSetting` here for what every ingress would refuse there."""
    ServerSettings(**server, api_keys=(key,) if key else ())


@contextlib.contextmanager
def joined(address: str | None, *, num_cpus: int | None = None) -> Iterator[bool]:
    """Connected to Ray. Without an address it is a new one, which ends on leaving: then it yields True."""
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
        )
    try:
        yield address is None
    finally:
        ray.shutdown()


def run(arguments: dict[str, Any], *, host: str, port: int) -> None:
    """Deploy, or roll what is deployed over to these arguments. Returns once all of it runs."""
    from ray import serve

    from drivetrain.deploy.application import build

    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    serve.run(build(arguments), name=APPLICATION, route_prefix="/")


@contextlib.contextmanager
def until_signal(longest_s: float) -> Iterator[None]:
    """While entered, SIGINT or SIGTERM leaves the block, wherever it is: there may be requests before `run` returns.

    Then no more requests are taken, and those that run may end, within `longest_s`. A second signal ends at once.
    """
    from ray import serve

    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        until = time.monotonic() + longest_s
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):  # Serve's own, after a minute of waiting for them
                serve.delete(APPLICATION)
                break


def wait() -> None:
    """Until a signal leaves the block of `until_signal`."""
    threading.Event().wait()
