"""From the judged values of a body to one `GenerateRequest` per prompt, and the shape of the answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import shown
from drivetrain.core.parameters import PARAMETERS, unsupported
from drivetrain.core.receipt import ReceiptWish
from drivetrain.core.receipt_kind import FULL
from drivetrain.core.request import GenerateRequest, Overflow
from drivetrain.core.tools import ToolMode
from drivetrain.families.template_variables import EFFORT_VARIABLES
from drivetrain.server.parse.body import Values, ignored_header
from drivetrain.server.parse.schema import CONSTRAINTS, FormatType

COMPLETION_MAX_TOKENS = 16
"""The OpenAI API's default for completions; a chat may fill the context."""

MAX_TRACE_CHARS = 512

RECEIPT_HEADER = "x-drivetrain-receipt"

_INPUTS = frozenset({"messages", "prompt", "prompt_token_ids", "images"})
_NOT_PASSED_ON = _INPUTS | {"logprobs"}
"""Fields that each endpoint translates itself; the others mean the same on both sides."""

_WITH: Mapping[str, tuple[str, ...]] = {
    "logprobs": ("prompt_logprobs",),
    "tools": ("tool_choice", "parallel_tool_calls"),
}
"""Fields that mean nothing without another one: a lenient server leaves them out together."""

_SCHEMA_PLACES: Mapping[str, tuple[str, ...]] = {
    FormatType.TEXT: (),
    FormatType.JSON_OBJECT: ("schema",),
    FormatType.JSON_SCHEMA: ("json_schema", "schema"),
}
"""Where a `response_format` may have a schema."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """`names` gives the endpoint's names for fields of our requests, for errors. `id` is the answer's; each prompt's
    request has it too, so that logs and traces can be found by the id that the client got. `ignored` are fields that
    were left out; a lenient server also leaves out what the model cannot do (`honoured`). `overflow` is the way of an
    endpoint, for a request that says nothing of it (`fitting`)."""

    requests: tuple[GenerateRequest, ...]
    n: int
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    names: Mapping[str, str]
    id: str = ""
    continuous_usage: bool = False
    lenient: bool = False
    ignored: tuple[str, ...] = ()
    overflow: Overflow | None = None

    @property
    def headers(self) -> dict[str, str]:
        return ignored_header(self.ignored)


def chat_request(body: Values, headers: Mapping[str, str]) -> ParsedRequest:
    names = {"logprobs": "top_logprobs" if body.get("top_logprobs") else "logprobs"}
    values = shared_values(body, headers, names) | {"messages": body["messages"], "logprobs": top_logprobs(body)}
    if "tools" not in values:
        drop_idle_choice(values)
    max_tokens = body.get("max_completion_tokens")
    if max_tokens is not None:
        if body.get("max_tokens") not in {None, max_tokens}:
            raise InvalidRequest(
                f"max_tokens is {body['max_tokens']} and max_completion_tokens {max_tokens}: "
                "they mean the same, so give one of them",
                param="max_tokens",
            )
        values["max_tokens"] = max_tokens
        names["max_tokens"] = "max_completion_tokens"
    return parsed_request(body, [values], names, new_id("chatcmpl"), logprobs=bool(body.get("logprobs")))


def drop_idle_choice(values: dict[str, Any]) -> None:
    """Without tools, what says how to choose one asks for nothing, unless it asks for a call."""
    values.pop("parallel_tool_calls", None)
    choice = values.get("tool_choice")
    if choice is not None and choice.mode is not ToolMode.REQUIRED and not choice.names:
        del values["tool_choice"]


def completion_request(body: Values, headers: Mapping[str, str], *, max_prompts: int) -> ParsedRequest:
    """`echo` with `logprobs` includes the prompt's logprobs."""
    logprobs = body.get("logprobs")
    names = {"prompt_logprobs": "logprobs", "messages": "prompt"}
    values = {"max_tokens": COMPLETION_MAX_TOKENS, **shared_values(body, headers, names), "logprobs": logprobs}
    if "max_tokens" not in body and body.get("min_tokens", 0) > COMPLETION_MAX_TOKENS:
        raise InvalidRequest(
            f"min_tokens is {body['min_tokens']}, but a completion has at most {COMPLETION_MAX_TOKENS} tokens if "
            "max_tokens is left out; send max_tokens too",
            param="min_tokens",
        )
    if body.get("echo"):
        values["prompt_logprobs"] = logprobs
    if "prompt_token_ids" in body:
        if "prompt" in body:
            raise InvalidRequest("give prompt or prompt_token_ids, not both", param="prompt_token_ids")
        prompts: tuple[str | tuple[int, ...], ...] = (body["prompt_token_ids"],)
    elif "prompt" in body:
        prompts = body["prompt"]
        names["prompt_token_ids"] = "prompt"
    else:
        raise InvalidRequest("prompt is missing", param="prompt")
    if len(prompts) > max_prompts:
        raise InvalidRequest(f"prompt has {len(prompts)} entries; the limit is {max_prompts}", param="prompt")
    inputs = [{"prompt": p} if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
    return parsed_request(body, [values | i for i in inputs], names, new_id("cmpl"), logprobs=logprobs is not None)


def honoured(parsed: ParsedRequest, capabilities: Capabilities) -> ParsedRequest:
    """The same without what this model cannot do, which is noted in `ignored`. A strict server refuses it later. A
    receipt is told of all that was left out."""
    if parsed.overflow is not None and "overflow" not in capabilities.parameters:  # who counts no tokens fits nothing
        parsed = replace(parsed, overflow=None)
    able = _honoured(parsed, capabilities) if parsed.lenient else parsed
    wish = able.requests[0].receipt
    if wish is None or not able.ignored:
        return able
    told = replace(wish, ignored=able.ignored)
    return replace(able, requests=tuple(request.having(receipt=told) for request in able.requests))


def _honoured(parsed: ParsedRequest, capabilities: Capabilities) -> ParsedRequest:
    given = parsed.requests[0].given()  # the others differ in their prompts
    dropped = [name for name in unsupported(given, capabilities) if name not in _INPUTS]
    if "reasoning_effort" in given and capabilities.template_variables.isdisjoint(EFFORT_VARIABLES):
        dropped = [*dict.fromkeys([*dropped, "reasoning_effort"])]
    unread = [key for key in given.get("chat_template_kwargs", ()) if key not in capabilities.template_variables]
    ids_dropped = parsed.token_ids and not capabilities.tokens
    if not dropped and not unread and not ids_dropped:
        return parsed
    cleared: dict[str, Any] = dict.fromkeys([*dropped, *(o for name in dropped for o in _WITH.get(name, ()))])
    if unread and "chat_template_kwargs" not in cleared:
        cleared["chat_template_kwargs"] = {k: v for k, v in given["chat_template_kwargs"].items() if k not in unread}
    names = [parsed.names.get(name, name) for name in dropped]
    names += [f"chat_template_kwargs.{key}" for key in unread] + ["return_token_ids"] * ids_dropped
    return replace(
        parsed,
        requests=tuple(request.having(**cleared) for request in parsed.requests),
        n=1 if "n" in dropped else parsed.n,
        logprobs=parsed.logprobs and "logprobs" not in dropped,
        token_ids=parsed.token_ids and not ids_dropped,
        ignored=(*parsed.ignored, *names),
    )


def fitting(parsed: ParsedRequest) -> ParsedRequest:
    """The same, fitted into the context in the way of its endpoint."""
    if parsed.overflow is None:
        return parsed
    requests = [r if r.overflow is not None else r.having(overflow=parsed.overflow) for r in parsed.requests]
    return replace(parsed, requests=tuple(requests))


def new_id(prefix: str) -> str:
    return f"{prefix}-{new_hex()}"


def new_hex() -> str:
    return secrets.token_hex(12)


def shared_values(body: Values, headers: Mapping[str, str], names: dict[str, str]) -> dict[str, Any]:
    """Adds to `names` what the body calls the constraint."""
    values = {name: value for name, value in body.items() if name in PARAMETERS and name not in _NOT_PASSED_ON}
    given = {name: made for name in CONSTRAINTS if (made := _constraint(name, body.get(name))) is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise InvalidRequest(
            f"{second} cannot be combined with {first}: each says what the text must be; give one of them", param=second
        )
    for name, made in given.items():
        values["constraint"], names["constraint"] = made, name
    if (trace := trace_headers(headers)) is not None:
        values["trace_context"] = trace
    if "receipt" not in values and (wish := receipt_wish(headers)) is not None:
        values["receipt"] = wish
    return values


def _constraint(name: str, value: Any) -> Constraint | None:
    """From the judged value of one of `CONSTRAINTS`."""
    if value is None or isinstance(value, Constraint):
        return value
    if name == "response_format":
        return _of_format(value)
    (constraint,) = value.values()
    return cast("Constraint", constraint)


def _of_format(value: Mapping[str, Any]) -> Constraint | None:
    """The schema stands in `json_schema`, or beside the type, as llama.cpp's clients have it."""
    kind = value["type"]
    places = [name for name in ("json_schema", "schema") if name in value]
    if wrong := next((name for name in places if name not in _SCHEMA_PLACES[kind]), None):
        raise _format_fault(wrong, f"does not go with the type {kind}; leave it out, or change the type")
    if len(places) > 1:
        raise _format_fault("schema", "cannot be combined with response_format.json_schema; give one of them")
    if kind is FormatType.JSON_SCHEMA and not places:
        raise _format_fault("json_schema", "is missing")
    if not places:
        return Constraint(ConstraintForm.JSON) if kind is FormatType.JSON_OBJECT else None
    return cast("Constraint", value["schema"] if "schema" in value else value["json_schema"]["schema"])


def _format_fault(name: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"response_format.{name} {fault}", param=f"response_format.{name}")


def receipt_wish(headers: Mapping[str, str]) -> ReceiptWish | None:
    """What the header asks for, for clients that can set no field of their own."""
    asked = headers.get(RECEIPT_HEADER, "").strip().lower()
    wishes = {
        "": None,
        "0": None,
        "false": None,
        "1": ReceiptWish(),
        "true": ReceiptWish(),
        FULL: ReceiptWish(full=True),
    }
    if asked not in wishes:
        raise InvalidRequest(f"{RECEIPT_HEADER} is {shown(asked)}; it must be 1 or {FULL}", param=RECEIPT_HEADER)
    return wishes[asked]


def trace_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's trace context, if it sent one. A state that is too long is left out, as W3C says."""
    parent, state = headers.get("traceparent"), headers.get("tracestate")
    if parent is None or len(parent) > MAX_TRACE_CHARS:
        return None
    return {"traceparent": parent} | ({"tracestate": state} if state and len(state) <= MAX_TRACE_CHARS else {})


def parsed_request(
    body: Values, values: list[dict[str, Any]], names: dict[str, str], answer_id: str, *, logprobs: bool
) -> ParsedRequest:
    options, stream = body.get("stream_options"), bool(body.get("stream"))
    if options and any(options.values()) and not stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    n = body.get("n", 1)
    if body.get("best_of", n) != n:
        body.leave_out(Unsupported("best_of is not supported yet; leave it out", param="best_of"))
    for place, value in enumerate(values):
        value["request_id"] = answer_id if len(values) == 1 else f"{answer_id}-{place}"
    include_usage = bool(options and options.get("include_usage"))
    return ParsedRequest(
        requests=tuple(map(GenerateRequest.of_judged, values)),
        n=n,
        stream=stream,
        include_usage=include_usage,
        logprobs=logprobs,
        token_ids=bool(body.get("return_token_ids")),
        names=names,
        id=answer_id,
        continuous_usage=include_usage and bool(options and options.get("continuous_usage_stats")),
        lenient=body.lenient,
        ignored=tuple(body.ignored),
    )


def top_logprobs(body: Values) -> int | None:
    top: int = body.get("top_logprobs", 0)
    if body.get("logprobs"):
        return top
    if top:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return None
