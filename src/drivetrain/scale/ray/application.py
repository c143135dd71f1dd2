"""The application that Serve runs: a deployment for each model, and the server in front of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp, Receive, Scope, Send

from drivetrain.http.address import is_loopback
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.ray.handle import HandleWorker
from drivetrain.scale.ray.observability import observing
from drivetrain.scale.ray.plan import KEY_VARIABLE, OBSERVABILITY, check_arguments, settings_of
from drivetrain.scale.ray.replica import ServedReplica
from drivetrain.server.app import create_app
from drivetrain.server.errors import refusal


def build(arguments: dict[str, Any]) -> Application:
    """From what `plan.arguments_of` made. A file for Serve names this function as its `import_path`."""
    check_arguments(arguments)
    ingress = arguments["ingress"]
    observability = arguments.get(OBSERVABILITY, {})
    handles = {model["settings"]["name"]: model_of(model, observability) for model in arguments["models"]}
    served = serve.deployment(serve.ingress()(Ingress), **ingress["options"])
    return served.bind(ingress["server"], handles, observability)


def model_of(model: Mapping[str, Any], observability: Mapping[str, Any]) -> Application:
    """One model, without a server."""
    return serve.deployment(ServedReplica, **model["options"]).bind(model["model"], model["settings"], observability)


_NEEDS_KEY = refusal(
    403,
    f"this server has no API key, so it only answers its own machine; set {KEY_VARIABLE} on the nodes",
    kind="authentication_error",
    code="invalid_api_key",
)


_CLIENT_HIDDEN_BY = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_ENABLE_DIRECT_INGRESS", "RAY_SERVE_THROUGHPUT_OPTIMIZED")
"""Each puts another program in front of the ingress, which does not pass on the client's address."""


def workers_of(handles: Mapping[str, Any]) -> dict[str, HandleWorker]:
    return {name: HandleWorker(handle, name, host=_link_host()) for name, handle in handles.items()}


def _link_host() -> str:
    """Where replicas reach this process past Ray. Empty if Ray encrypts its traffic, since the link does not."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
        return ""
    return str(ray.util.get_node_ip_address())


class Ingress:
    """The server of `drivetrain serve`, over handles in place of workers."""

    def __init__(self, server: Mapping[str, Any], handles: Mapping[str, Any], observability: Mapping[str, Any]) -> None:
        self._stack = ExitStack()
        self._tracer = self._stack.enter_context(observing(observability))
        self._settings = settings_of(server)
        self._workers = workers_of(handles)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        app = create_app(Fleet.of(self._workers, replaced=True), self._settings, self._tracer)

        async def with_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await self._live(receive, send)
            elif scope["type"] == "http":
                await (app if self._admits(scope) else _NEEDS_KEY)(scope, receive, send)

        return with_lifespan

    def _admits(self, scope: Scope) -> bool:
        """Serve decides where it listens; whatever that is, without a key only this machine is answered."""
        settings = self._settings
        if settings.api_keys or settings.insecure_no_key:
            return True
        if any(os.environ.get(name) == "1" for name in _CLIENT_HIDDEN_BY):
            return False  # the client that we see is that program, whoever asked it
        client, _port = scope.get("client") or ("", 0)
        return is_loopback(client)

    async def _live(self, receive: Receive, send: Send) -> None:
        """From startup to shutdown. Serve lets running requests end before it shuts an ingress down."""
        while (message := await receive())["type"] != "lifespan.shutdown":
            assert message["type"] == "lifespan.startup"
            for worker in self._workers.values():
                worker.start()
            await send({"type": "lifespan.startup.complete"})
        for worker in self._workers.values():
            await worker.stop()
        self._stack.close()
        await send({"type": "lifespan.shutdown.complete"})
