"""How things stand: `/health` (the process), `/ready` (progress), `/status` (for the page), `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from drivetrain import __version__
from drivetrain.core.status import State, Status
from drivetrain.server.context import Context
from drivetrain.server.errors import json_response
from drivetrain.telemetry.memory import host_memory

NO_STORE = {"cache-control": "no-store"}


async def health(request: Request, context: Context) -> Response:
    return json_response({"status": "ok"}, headers=NO_STORE)


async def ready(request: Request, context: Context) -> Response:
    """200 while every model takes requests; the reason otherwise."""
    if context.models.ready:
        return json_response({"status": "ready"}, headers=NO_STORE)
    states = {name: _state(worker.status) for name, worker in context.models}
    return json_response({"status": "not ready", "models": states}, 503, {**NO_STORE, "retry-after": "1"})


def _state(status: Status) -> str:
    return "the engine is down" if status.state is State.READY and not status.engine_alive else status.state.value


async def status(request: Request, context: Context) -> Response:
    gauges = context.gauges
    statuses = [(name, worker.status) for name, worker in context.models]
    memory = [host_memory(), *(m for m in gauges.memory if m.device != "cpu")]
    document = {
        "state": "ready" if context.models.ready else _state(statuses[0][1]),
        "running": sum(s.running for _, s in statuses),
        "waiting": sum(s.waiting for _, s in statuses),
        "tokens_per_s": round(gauges.tokens_per_s(), 3),
        "first_token_s": [round(s, 4) for s in gauges.first_token_s],
        "completion_tokens": gauges.tokens,
        "memory": [asdict(m) for m in memory],
        "models": {name: _model_status(s) for name, s in statuses},
        "version": __version__,
    }
    return json_response(document, headers=NO_STORE)


def _model_status(status: Status) -> dict[str, Any]:
    return {
        "state": status.state.value,
        "engine_alive": status.engine_alive,
        "running": status.running,
        "waiting": status.waiting,
        "endings": dict(status.endings),
        "prompt_tokens": status.prompt_tokens,
        "completion_tokens": status.completion_tokens,
        "seconds_since_progress": round(status.last_progress_s, 3),
    }


async def metrics(request: Request, context: Context) -> Response:
    text = "".join(f"{line}\n" for line in _exposition(context))
    return Response(text, headers=NO_STORE, media_type="text/plain; version=0.0.4; charset=utf-8")


def _exposition(context: Context) -> Iterator[str]:
    """The Prometheus text format."""
    statuses = [(_label("model", name), worker.status) for name, worker in context.models]
    yield from _family("requests_running", "gauge", "requests that run now", [(m, s.running) for m, s in statuses])
    yield from _family("requests_waiting", "gauge", "requests in the queue", [(m, s.waiting) for m, s in statuses])
    yield from _family(
        "ready",
        "gauge",
        "1 while requests are taken and the engine lives",
        [(m, int(s.state is State.READY and s.engine_alive)) for m, s in statuses],
    )
    yield from _family(
        "requests_total",
        "counter",
        "ended requests by how they ended",
        [(f"{m},{_label('ending', e)}", count) for m, s in statuses for e, count in sorted(s.endings.items())],
    )
    yield from _family(
        "prompt_tokens_total", "counter", "tokens of prompts", [(m, s.prompt_tokens) for m, s in statuses]
    )
    yield from _family(
        "completion_tokens_total",
        "counter",
        "tokens sampled, counted when a request ends",
        [(m, s.completion_tokens) for m, s in statuses],
    )
    gauges = context.gauges
    yield "# HELP drivetrain_first_token_seconds seconds from the request to its first token"
    yield "# TYPE drivetrain_first_token_seconds summary"
    yield f"drivetrain_first_token_seconds_sum {gauges.first_token_sum:.6f}"
    yield f"drivetrain_first_token_seconds_count {gauges.first_token_count}"


def _family(name: str, kind: str, meaning: str, samples: list[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP drivetrain_{name} {meaning}"
    yield f"# TYPE drivetrain_{name} {kind}"
    for labels, value in samples:
        yield f"drivetrain_{name}{{{labels}}} {value}"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'
