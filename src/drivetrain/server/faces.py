"""Which API a path belongs to, and how that API writes an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import DrivetrainError
from drivetrain.server.errors import ErrorFields, ErrorResponse, fields_of, json_response, status_of
from drivetrain.telemetry.ids import id_here

OLLAMA = "/api/"

ErrorShape = Callable[[ErrorFields, int], dict[str, Any]]


def in_shape(response: Response, path: str) -> Response:
    """The same, or if it is an error and the path belongs to another API than OpenAI's, as clients of that read it."""
    if not isinstance(response, ErrorResponse):
        return response
    shape = next((shape for start, shape in _SHAPES if path.startswith(start)), None)
    if shape is None:
        return response
    headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return json_response(shape(response.fields, response.status_code), response.status_code, headers)


def anthropic_error(error: DrivetrainError) -> dict[str, Any]:
    return _anthropic(fields_of(error), status_of(error)[0])


def ollama_error(error: DrivetrainError) -> dict[str, Any]:
    return _ollama(fields_of(error), status_of(error)[0])


def _ollama(fields: ErrorFields, status: int) -> dict[str, Any]:
    """The message alone is the API's."""
    return {"error": fields["message"], "param": fields["param"], "code": fields["code"]}


def _anthropic(fields: ErrorFields, status: int) -> dict[str, Any]:
    """With the field's name and our code, which the API does not have."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    told = {"type": kind, "message": fields["message"], "param": fields["param"], "code": fields["code"]}
    return {"type": "error", "error": told}


def _anthropic_body(fields: ErrorFields, status: int) -> dict[str, Any]:
    return {**_anthropic(fields, status), "request_id": id_here()}


_SHAPES: tuple[tuple[str, ErrorShape | None], ...] = (
    ("/v1/messages", _anthropic_body),
    ("/api/worker/", None),
    (OLLAMA, _ollama),
)
"""By how a path begins; the first counts. `/api/worker/` is DB-GPT's."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
