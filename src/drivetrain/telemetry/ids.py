"""What a request is called where its caller gave it no name."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

HTTP_REQUEST_ID: ContextVar[str] = ContextVar("drivetrain_http_request_id", default="")
"""Of the HTTP request that is being answered: the `x-request-id` of its answer."""


def new_id() -> str:
    return f"req-{secrets.token_hex(12)}"


def id_here() -> str:
    """For a request that carries no id of its own."""
    return HTTP_REQUEST_ID.get() or new_id()
