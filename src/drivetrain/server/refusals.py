"""Spans and log lines for requests that never reach a worker: invalid JSON, an unknown field, an unknown model."""

from __future__ import annotations

import logging
import re

from starlette.datastructures import Headers
from starlette.types import Scope

from drivetrain.core.errors import Cancelled, DrivetrainError, InvalidRequest, ModelNotFound
from drivetrain.server.counts import OTHER
from drivetrain.server.parse.translate import trace_headers
from drivetrain.telemetry.genai import Operation
from drivetrain.telemetry.ids import id_here
from drivetrain.telemetry.logs import FIELDS
from drivetrain.telemetry.tracing import GenAiTracer

_log = logging.getLogger("drivetrain.requests")

_FIELD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")

_OPERATIONS = {
    "/v1/chat/completions": Operation.CHAT,
    "/v1/responses": Operation.CHAT,
    "/v1/messages": Operation.CHAT,
    "/api/chat": Operation.CHAT,
    "/api/generate": Operation.TEXT_COMPLETION,
    "/api/embed": Operation.EMBEDDINGS,
    "/api/embeddings": Operation.EMBEDDINGS,
    "/v1/completions": Operation.TEXT_COMPLETION,
    "/v1/embeddings": Operation.EMBEDDINGS,
    "/v1/rerank": Operation.RERANK,
    "/v2/rerank": Operation.RERANK,
    "/rerank": Operation.RERANK,
    "/v1/score": Operation.RERANK,
    "/score": Operation.RERANK,
    "/worker_generate": Operation.TEXT_COMPLETION,
    "/worker_generate_stream": Operation.TEXT_COMPLETION,
    "/worker_get_embeddings": Operation.EMBEDDINGS,
    "/api/worker/generate": Operation.CHAT,
    "/api/worker/generate_stream": Operation.CHAT,
    "/api/worker/embeddings": Operation.EMBEDDINGS,
}


def record_refusal(tracer: GenAiTracer | None, scope: Scope, error: DrivetrainError, began_ns: int) -> None:
    """A span and a log line, unless the worker has written them (it has put a request id into the error) or the client
    left. The model is not shown, since a client can write anything there; a field's name only if it looks like one.
    """
    operation = _OPERATIONS.get(scope["path"])
    if operation is None or error.request_id is not None or isinstance(error, Cancelled):
        return
    if tracer is not None:
        tracer.refuse(operation, error, parent=trace_headers(Headers(scope=scope)), began_ns=began_ns)
    if isinstance(error, (InvalidRequest, ModelNotFound)):  # the fleet logs why a model could not be loaded
        fields = {"request_id": id_here(), "path": scope["path"], "ending": error.code, "param": named(error.param)}
        _log.info("%s %s %s %s", *fields.values(), extra={FIELDS: fields})


def named(param: str | None) -> str:
    """A field for the log: its name, if it can be one."""
    if not param:
        return ""
    return param if _FIELD.fullmatch(param) else OTHER
