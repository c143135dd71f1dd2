"""The server's state: `/health` (liveness), `/ready` (readiness), `/status` (for the page)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain import __version__
from drivetrain.core.status import State
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.server.models import ServedModel
from drivetrain.server.tenants import SCOPE_KEY

NO_STORE = {"cache-control": "no-store"}


async def health(request: Request, context: Context) -> Response:
    """200 unless only a new process helps: then the process should be restarted."""
    if context.models.lost:
        return json_response({"status": "failed"}, 503, NO_STORE)
    return json_response({"status": "ok"}, headers=NO_STORE)


async def ready(request: Request, context: Context) -> Response:
    """200 while every model that is loaded, or pinned, accepts requests.

    Otherwise 503 with the models' states, unless the caller lacks a key on a server that needs one.
    """
    if context.models.ready:
        return json_response({"status": "ready"}, headers=NO_STORE)
    if context.settings.api_keys and SCOPE_KEY not in request.scope:
        return json_response({"status": "not ready"}, 503, {**NO_STORE, "retry-after": "1"})
    states = {model.name: _state(model) for model in context.models.members}
    return json_response({"status": "not ready", "models": states}, 503, {**NO_STORE, "retry-after": "1"})


def _state(model: ServedModel) -> str:
    down = model.worker is not None and model.worker.state is State.READY and not model.worker.status.engine_alive
    return "the engine is down" if down else model.state


async def status(request: Request, context: Context) -> Response:
    models = context.models.members
    statuses = [(name, worker.status) for name, worker in context.models]
    loading = sum(model.num_waiting for model in models)
    stats = {model.name: model.stats for model in models}
    tokens = {name: s.completion_tokens for name, s in stats.items()}
    memory = {m.device: m for _, s in statuses for m in s.memory}
    document = {
        "state": "ready"
        if context.models.ready
        else next((s for m in models if (s := _state(m)) != "ready"), "loading"),
        "running": sum(s.running for _, s in statuses),
        "waiting": loading + sum(s.waiting for _, s in statuses),
        "tokens_per_s": round(context.rate.look(tokens), 3),
        "first_token_s": [round(seconds, 4) for s in stats.values() for seconds in s.recent_first_token_s],
        "completion_tokens": sum(tokens.values()),
        "memory": [asdict(m) for m in memory.values()],
        "models": {model.name: _model_status(model) for model in models},
        "version": __version__,
    }
    return json_response(document, headers=NO_STORE)


def _model_status(model: ServedModel) -> dict[str, Any]:
    if model.worker is None:
        return {"state": model.state, "waiting": model.num_waiting}
    status = model.worker.status
    return {
        "state": status.state.value,
        "engine_alive": status.engine_alive,
        "running": status.running,
        "waiting": status.waiting + model.num_waiting,
        "max_waiting": status.max_waiting,
        "endings": dict(status.endings),
        "prompt_tokens": status.prompt_tokens,
        "completion_tokens": status.completion_tokens,
        "seconds_since_progress": round(status.last_progress_s, 3),
    }
