"""What the two protocols have in common before an answer: the request shaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from drivetrain.core.build import build_request
from drivetrain.core.errors import InvalidRequest
from drivetrain.server.errors import renamed
from drivetrain.server.translate import Asked, trace_headers


def sampling(temperature: float | None, top_p: float | None, top_k: int | None) -> dict[str, Any]:
    """In both protocols a `top_k` of -1 is none, and a `top_p` of 0 leaves the likeliest token only."""
    if top_p == 0:
        return {"temperature": 0.0}
    return {"temperature": temperature, "top_p": top_p, "top_k": 0 if top_k == -1 else top_k}


def asked_of(request: Request, values: Mapping[str, Any], names: Mapping[str, str], *, logprobs: bool = False) -> Asked:
    """`names` are what the protocol calls the fields of our requests. Raises `InvalidRequest`."""
    try:
        built = build_request({**values, "trace_context": trace_headers(request.headers)})
    except InvalidRequest as exc:
        raise renamed(exc, names) from None
    return Asked(
        requests=(built,), n=1, stream=True, include_usage=False, logprobs=logprobs, token_ids=False, names=names
    )
