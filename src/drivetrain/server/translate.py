"""From a checked body to requests of the contract, one a prompt, and what of the answer's shape was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from drivetrain.core.build import build_request
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.request import GenerateRequest
from drivetrain.server.errors import renamed
from drivetrain.server.schema import ChatBody, CompletionBody, GenerateBody, StreamOptions
from drivetrain.server.spelling import new_id

COMPLETION_MAX_TOKENS = 16
"""What the OpenAI API says for completions; a chat may fill the context."""

MAX_TRACE_CHARS = 512

_PASSED_ON = frozenset(field.name for field in fields(GenerateRequest)) & frozenset(GenerateBody.model_fields)
"""Fields with the same name and meaning on both sides."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`names` are what this endpoint calls the fields of our requests, for the errors. `id` is that of the answer: the
    request of each prompt has it too, so that logs and traces are found by what the client was given."""

    requests: tuple[GenerateRequest, ...]
    n: int
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    names: Mapping[str, str]
    id: str = ""


def chat_request(body: ChatBody, headers: Mapping[str, str]) -> Asked:
    values = _shared(body, headers) | {"messages": body.messages, "logprobs": _top_logprobs(body)}
    names = {"logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        if body.max_tokens not in {None, body.max_completion_tokens}:
            raise InvalidRequest(
                f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens}: "
                "they mean the same, so give one of them",
                param="max_tokens",
            )
        values["max_tokens"] = body.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    return _asked(body, [values], names, new_id("chatcmpl"), logprobs=bool(body.logprobs))


def completion_request(body: CompletionBody, headers: Mapping[str, str], *, max_prompts: int) -> Asked:
    """`echo` with `logprobs` asks for those of the prompt too."""
    values = _shared(body, headers) | {"echo": body.echo, "logprobs": body.logprobs}
    values.setdefault("max_tokens", COMPLETION_MAX_TOKENS)
    names = {"prompt_logprobs": "logprobs", "messages": "prompt"}
    if body.echo and body.logprobs is not None:
        values["prompt_logprobs"] = body.logprobs
    if body.prompt_token_ids is not None:
        if body.prompt is not None:
            raise InvalidRequest("give prompt or prompt_token_ids, not both", param="prompt_token_ids")
        prompts: list[str | list[int]] = [body.prompt_token_ids]
    else:
        prompts = as_list(body.prompt, "prompt")
        names["prompt_token_ids"] = "prompt"
    if len(prompts) > max_prompts:
        raise InvalidRequest(f"prompt has {len(prompts)} entries; the limit is {max_prompts}", param="prompt")
    inputs = [{"prompt": p} if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
    return _asked(body, [values | i for i in inputs], names, new_id("cmpl"), logprobs=body.logprobs is not None)


def as_list(given: str | list[str] | list[int] | list[list[int]] | None, name: str) -> list[str | list[int]]:
    """The four forms of OpenAI's prompts and inputs as one: a list of texts or id lists."""
    if given is None:
        raise InvalidRequest(f"{name} is missing", param=name)
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest(f"{name} is an empty list", param=name)
    if all(type(i) is int for i in given):
        return [[i for i in given if isinstance(i, int)]]
    return [item for item in given if isinstance(item, (str, list))]


def _shared(body: GenerateBody, headers: Mapping[str, str]) -> dict[str, Any]:
    values = {name: value for name in _PASSED_ON if (value := getattr(body, name)) is not None}
    if "logit_bias" in values:
        values["logit_bias"] = {_token_id(key): bias for key, bias in values["logit_bias"].items()}
    if (trace := trace_headers(headers)) is not None:
        values["trace_context"] = trace
    return values


def trace_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's place in a trace, if it named one. A state that is too long is left out, as W3C says."""
    parent, state = headers.get("traceparent"), headers.get("tracestate")
    if parent is None or len(parent) > MAX_TRACE_CHARS:
        return None
    return {"traceparent": parent} | ({"tracestate": state} if state and len(state) <= MAX_TRACE_CHARS else {})


def _asked(
    body: GenerateBody, values: list[dict[str, Any]], names: dict[str, str], answer_id: str, *, logprobs: bool
) -> Asked:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options goes with stream: true", param="stream_options")
    for place, value in enumerate(values):
        value["request_id"] = answer_id if len(values) == 1 else f"{answer_id}-{place}"
    try:
        requests = tuple(map(build_request, values))
    except InvalidRequest as exc:
        raise renamed(exc, names) from None
    return Asked(
        requests=requests,
        n=body.n or 1,
        stream=bool(body.stream),
        include_usage=bool((body.stream_options or StreamOptions()).include_usage),
        logprobs=logprobs,
        token_ids=bool(body.return_token_ids),
        names=names,
        id=answer_id,
    )


def _top_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise InvalidRequest("top_logprobs goes with logprobs: true", param="top_logprobs")
        return None
    return body.top_logprobs or 0


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        shown = key if len(key) <= 40 else key[:37] + "..."
        raise InvalidRequest(f"logit_bias has the key {shown!r}; it must be a token id", param="logit_bias")
    return int(key)
