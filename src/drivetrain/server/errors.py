"""From the error tree to HTTP: a status, headers, and the OpenAI error body."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from drivetrain.core.errors import (
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    InvalidRequest,
    ModelNotFound,
    NotReady,
    Overloaded,
    Unsupported,
)

MAX_BODY_BYTES = 4000
MAX_PARAM_CHARS = 200
MAX_MESSAGE_CHARS = 3000

_STATUS: list[tuple[type[DrivetrainError], int, str]] = [
    (ContextOverflow, 400, "invalid_request_error"),
    (InvalidRequest, 400, "invalid_request_error"),
    (ModelNotFound, 404, "invalid_request_error"),
    (NotReady, 503, "unavailable_error"),
    (Overloaded, 429, "overloaded_error"),
    (DeadlineExceeded, 504, "timeout_error"),
    (Cancelled, 503, "unavailable_error"),
]
"""The first match counts; anything else is a 500. `Cancelled` reaches a client only if the worker shuts down."""


def status_of(error: DrivetrainError) -> tuple[int, str]:
    return next(((status, kind) for cls, status, kind in _STATUS if isinstance(error, cls)), (500, "server_error"))


ErrorFields = Mapping[str, str | None]
"""What the OpenAI API says of an error: message, type, param, code. Other APIs' errors are made of it (`faces.py`)."""


class ErrorResponse(Response):
    """An error as the OpenAI API writes it."""

    media_type = "application/json"

    def __init__(self, fields: ErrorFields, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(_body(fields), status, dict(headers or {}))
        self.fields = fields


def body_of(error: DrivetrainError) -> bytes:
    return _body(fields_of(error))


def fields_of(error: DrivetrainError) -> ErrorFields:
    return error_fields(error.message, kind=status_of(error)[1], param=error.param, code=error.code)


def error_body(message: str, *, kind: str, code: str) -> bytes:
    return _body(error_fields(message, kind=kind, code=code))


def _body(fields: ErrorFields) -> bytes:
    return json.dumps({"error": fields}, ensure_ascii=False).encode()


def error_fields(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> ErrorFields:
    """Under 4 kB as JSON, whatever the message."""
    param = None if param is None else _printable(param[:MAX_PARAM_CHARS])
    message = _printable(message)
    limit = MAX_MESSAGE_CHARS
    while True:
        shown = message if len(message) <= limit else message[: limit - 3] + "..."
        fields = {"message": shown, "type": kind, "param": param, "code": code}
        if len(_body(fields)) <= MAX_BODY_BYTES or limit < 100:
            return fields
        limit //= 2


def _printable(text: str) -> str:
    """Without lone surrogates, which are not UTF-8, and control characters, which grow in JSON."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def error_response(error: DrivetrainError) -> ErrorResponse:
    headers = {}
    if isinstance(error, (Overloaded, Cancelled)):
        headers["retry-after"] = str(max(1, math.ceil(getattr(error, "retry_after_s", 1.0))))
    return ErrorResponse(fields_of(error), status_of(error)[0], headers)


def refusal(
    status: int, message: str, *, kind: str, code: str, headers: Mapping[str, str] | None = None
) -> ErrorResponse:
    return ErrorResponse(error_fields(message, kind=kind, code=code), status, headers)


def json_response(body: bytes | Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    if not isinstance(body, bytes):
        body = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, dict(headers or {}), "application/json")


_UNSUPPORTED_NAMES = {"prompt_logprobs": "echo with logprobs"}
"""What to call something unsupported, if the name of the field alone would say too much."""


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """The same error with the endpoint's name for the field, if that differs from the one in our request.

    `names` may have a place inside a field too, and with `.function` the name of that object inside tools.
    """
    if ".function" in names and (place := error.param or "").startswith("tools["):
        head, bracket, rest = place.partition("]")
        return moved(error, names.get(head + bracket, head + bracket) + rest.replace(".function", names[".function"]))
    head, rest = _named_part(error.param or "", names)
    if head not in names:
        return error
    name = _UNSUPPORTED_NAMES.get(head, names[head]) if isinstance(error, Unsupported) else names[head]
    return _said_of(error, names[head] + rest, head, name)


def moved(error: InvalidRequest, place: str) -> InvalidRequest:
    """The same error about another place, which its message begins with if it began with the old one."""
    return _said_of(error, place, error.param or "", place)


def going_on(error: InvalidRequest, more: str) -> InvalidRequest:
    """The same error with more to say."""
    copy = error.again()
    copy.message += more
    copy.args = (copy.message,)
    return copy


def _said_of(error: InvalidRequest, param: str, begins: str, name: str) -> InvalidRequest:
    copy = error.again()
    copy.param = param
    if error.message.startswith(begins):
        copy.message = name + error.message.removeprefix(begins)
    copy.args = (copy.message,)
    return copy


def _named_part(param: str, names: Mapping[str, str]) -> tuple[str, str]:
    """The longest beginning of the place that has a name of its own, and the rest."""
    head, rest = split_param(param)
    if rest.startswith("["):
        place = f"{head}{rest[: rest.find(']') + 1]}"
        if place in names:
            return place, param[len(place) :]
    return head, rest


def split_param(param: str) -> tuple[str, str]:
    """Splits `messages[0].role` into the field, `messages`, and the place in it."""
    cut = next((i for i, c in enumerate(param) if c in "[."), len(param))
    return param[:cut], param[cut:]
