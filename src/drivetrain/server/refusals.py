"""The spans of requests that no worker took note of: no JSON, an unknown field, a model that is not here."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from drivetrain.core.errors import Cancelled, DrivetrainError
from drivetrain.server.translate import trace_headers
from drivetrain.telemetry.genai import Operation, refuse
from drivetrain.telemetry.tracing import Tracer

_OPERATIONS = {
    "/v1/chat/completions": Operation.CHAT,
    "/v1/completions": Operation.TEXT_COMPLETION,
    "/v1/embeddings": Operation.EMBEDDINGS,
    "/worker_generate": Operation.TEXT_COMPLETION,
    "/worker_generate_stream": Operation.TEXT_COMPLETION,
    "/worker_get_embeddings": Operation.EMBEDDINGS,
    "/api/worker/generate": Operation.CHAT,
    "/api/worker/generate_stream": Operation.CHAT,
    "/api/worker/embeddings": Operation.EMBEDDINGS,
}


def trace_refusal(tracer: Tracer, scope: Scope, error: DrivetrainError, began_ns: int) -> None:
    """Only of what nobody else traces: a worker does it for each request whose id it has put into the error, and
    whoever left before an answer was not refused. Without the model: here it is whatever the client wrote."""
    operation = _OPERATIONS.get(scope["path"])
    if tracer.active and operation is not None and error.request_id is None and not isinstance(error, Cancelled):
        refuse(tracer, operation, error, parent=trace_headers(Headers(scope=scope)), began_ns=began_ns)
