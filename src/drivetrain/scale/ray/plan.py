"""What is to run, as plain values: the arguments of the application, and the settings that Serve has for each part."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.parameters import did_you_mean
from drivetrain.core.settings import declarations
from drivetrain.server.settings import ServerSettings

KEY_VARIABLE = "DRIVETRAIN_API_KEY"
APPLICATION = "drivetrain"
OBSERVABILITY = "observability"
"""The key of the `Observability.arguments` in the application's arguments, if there are any."""
INGRESS = "ingress"
IMPORT_PATH = "drivetrain.scale.ray.application:build"
ROUTER = "drivetrain.scale.ray.router:PrefixRouter"

RUNTIME = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
}
"""For the processes of replicas and ingresses, wherever they run.

Nothing of ours blocks the event loop, so Serve needs no second thread for it, and no token has to cross from one to
the other. Also, a call then ends only when our side of it has: that is how a handle knows that a slot is free.
"""

SURGE = 25
INGRESS_SURGE = 100
"""An ingress reserves nothing, so all new ones fit in before an old one goes."""

SPARE_S = 10.0
"""Beyond the longest request: what a replica gets to shut down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One model. `settings` are the given settings of its workers; the others keep their defaults."""

    model: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    min_replicas: int = 1
    max_replicas: int = 1
    max_ongoing: int = 16
    """Calls in one replica at a time. More wait in the ingress, where any replica can take them, a new one too."""
    target_ongoing: float = 8.0
    """Calls per replica that autoscaling aims for."""
    max_queued: int = 64
    """Calls that may wait for a replica in each ingress; one more is refused as overloaded."""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    surge: int = SURGE
    """Percentage of replicas that an update may start before old ones stop; with 0 an old one stops first."""
    longest_s: float = 600.0
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise InvalidSetting(
                f"replicas is {self.min_replicas}:{self.max_replicas}; MIN must be at least 1, because a replica has "
                "to say what the model can do, and at most MAX",
                param="replicas",
            )
        for name in ("max_ongoing", "target_ongoing", "max_queued"):
            if getattr(self, name) <= 0:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; it must be more than 0", param=name)
        if not 0 <= self.surge <= 100:
            raise InvalidSetting(f"surge is {self.surge}; it must be a percentage from 0 to 100", param="surge")

    @property
    def deployment(self) -> str:
        """The name of its deployment: letters, digits and hyphens."""
        return "model-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def options(self) -> dict[str, Any]:
        """For Serve."""
        scale: dict[str, Any] = {"num_replicas": self.min_replicas}
        if self.min_replicas != self.max_replicas:
            scale = {
                "autoscaling_config": {
                    "min_replicas": self.min_replicas,
                    "max_replicas": self.max_replicas,
                    "target_ongoing_requests": self.target_ongoing,
                    "upscale_delay_s": self.upscale_delay_s,
                    "downscale_delay_s": self.downscale_delay_s,
                }
            }
        return {
            "name": self.deployment,
            **scale,
            "max_ongoing_requests": self.max_ongoing,
            "max_queued_requests": self.max_queued,
            "graceful_shutdown_timeout_s": self.longest_s + SPARE_S,
            "graceful_shutdown_wait_loop_s": 0.5,
            "health_check_period_s": 2.0,
            "max_surge_percent": self.surge,
            "request_router_config": {"request_router_class": ROUTER, "request_routing_stats_period_s": 2.0},
            "ray_actor_options": {
                "num_cpus": self.num_cpus,
                "num_gpus": self.num_gpus,
                "runtime_env": {"env_vars": dict(RUNTIME)},
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressPlan:
    """`server` holds settings of the HTTP server, never a key: each ingress reads that where it runs."""

    server: Mapping[str, Any] = field(default_factory=dict)
    num_replicas: int = 1
    longest_s: float = 600.0

    @property
    def options(self) -> dict[str, Any]:
        return {
            "name": INGRESS,
            "num_replicas": self.num_replicas,
            "max_ongoing_requests": 2048,
            "graceful_shutdown_timeout_s": self.longest_s + SPARE_S,
            "graceful_shutdown_wait_loop_s": 0.5,
            "max_surge_percent": INGRESS_SURGE,
            "ray_actor_options": {"num_cpus": 0.0, "runtime_env": {"env_vars": dict(RUNTIME)}},
        }


def settings_of(server: Mapping[str, Any]) -> ServerSettings:
    """Those of an `IngressPlan`, with the key from this process's environment. Raises `InvalidSetting`."""
    known = declarations(ServerSettings)
    for name in server:
        if name not in known:
            raise InvalidSetting(f"the server has no setting {name}{did_you_mean(name, known)}", param=name)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    return ServerSettings(**server, api_keys=(key,) if key else ())


def arguments_of(
    models: Sequence[ModelPlan], ingress: IngressPlan, observability: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """For `application.build`. `observability` holds `Observability.arguments`; without it nothing is logged."""
    named = [{"model": m.model, "settings": {**m.settings, "name": m.name}, "options": m.options} for m in models]
    return {
        "models": named,
        "ingress": {"server": dict(ingress.server), "options": ingress.options},
        **({OBSERVABILITY: dict(observability)} if observability else {}),
    }


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise `InvalidSetting` for a key that `arguments_of` does not make, as a file for Serve may hold one."""
    for name in arguments.keys() - {"models", "ingress", OBSERVABILITY}:
        raise InvalidSetting(
            f"the application has no argument {name}; print its file anew with `drivetrain deploy --dry-run`",
            param=name,
        )


def config_of(arguments: Mapping[str, Any], *, host: str, port: int) -> dict[str, Any]:
    """The arguments in the format that `serve deploy` and KubeRay's RayService take."""
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": port},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": dict(arguments),
            }
        ],
    }
