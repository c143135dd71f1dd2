"""What the two protocols have in common when they read a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from drivetrain.core.kinds import Number
from drivetrain.core.request import GenerateRequest
from drivetrain.server.parse.body import Field, Values
from drivetrain.server.parse.schema import like
from drivetrain.server.parse.translate import ParsedRequest, trace_headers

_SAMPLING = (
    "temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop",
    "stop_token_ids",
)  # fmt: skip

SAMPLING: Mapping[str, Field] = {
    "temperature": like("temperature"),
    "top_p": like("top_p", kind=Number(0, 1)),
    "top_k": like("top_k", nothing=(-1,)),
    "repetition_penalty": like("repetition_penalty"),
    "presence_penalty": like("presence_penalty"),
    "frequency_penalty": like("frequency_penalty"),
    "max_new_tokens": like("max_tokens", nothing=(-1,)),
    "stop": like("stop", nothing=("", [])),
    "stop_token_ids": like("stop_token_ids", nothing=([],)),
}
"""The fields that both protocols have, under their names."""


def sampling(body: Values) -> dict[str, Any]:
    """The values that have the same name here. In both protocols, a `top_p` of 0 means greedy."""
    values = {name: body.get(name) for name in _SAMPLING}
    return values | ({"temperature": 0.0, "top_p": None, "top_k": None} if values["top_p"] == 0 else {})


def parsed_request(
    request: Request, body: Values, values: Mapping[str, Any], names: Mapping[str, str], *, logprobs: bool = False
) -> ParsedRequest:
    """From judged values; `names` gives the protocol's names for fields of our requests."""
    generate_request = GenerateRequest.of_judged({**values, "trace_context": trace_headers(request.headers)})
    return ParsedRequest(
        requests=(generate_request,),
        n=1,
        stream=True,
        include_usage=False,
        logprobs=logprobs,
        token_ids=False,
        names=names,
        lenient=body.lenient,
        ignored=tuple(body.ignored),
    )
