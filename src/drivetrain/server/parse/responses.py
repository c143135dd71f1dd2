"""`/v1/responses`: what it accepts, and the request that it means. Open Responses, without a store."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Boolean, Integer, Kind, ListOf, OneOf, Schema, String, StringMap
from drivetrain.core.request import Overflow
from drivetrain.server.parse.body import Body, Field, Values
from drivetrain.server.parse.responses_input import INPUT, turns_of
from drivetrain.server.parse.responses_tools import FlatToolChoice, FlatTools, ResponseTools, flat_choice
from drivetrain.server.parse.schema import MODEL, SAMPLING, SCHEMA_CONSTRAINT, FormatType, Object, Refused, inert, like
from drivetrain.server.parse.translate import ParsedRequest, drop_idle_choice, new_hex, parsed_request, shared_values


class Truncation(StrEnum):
    DISABLED = "disabled"
    AUTO = "auto"


class Include(StrEnum):
    LOGPROBS = "message.output_text.logprobs"
    ENCRYPTED_REASONING = "reasoning.encrypted_content"


def stateless(instead: str, *neutral: Any) -> Field:
    why = f"is not supported: this server keeps no answers; {instead}"
    return Field(Refused(neutral, why), f"not supported: no answers are kept; {instead}", refused=True)


def _refused(why: str, *neutral: Any) -> Field:
    return Field(Refused(neutral, f"is not supported: {why}"), f"not supported: {why}", refused=True)


_FORMAT = Body(
    "TextFormat",
    {
        "type": Field(OneOf(FormatType), "text asks for nothing", required=True),
        "schema": Field(SCHEMA_CONSTRAINT, "the schema, for the type json_schema"),
        "name": Field(String(), "returned as it is"),
        "description": Field(String(), "returned as it is"),
        "strict": Field(Boolean(), "true or false: the schema holds either way", inert=True),
    },
)

_TEXT = Body(
    "TextOptions",
    {"format": Field(_FORMAT, "what the text must be"), "verbosity": inert(String())},
)


class Metadata(Kind):
    takes = "up to 16 strings by name"

    def judge(self, name: str, value: Any) -> Mapping[str, str]:
        judged = StringMap().judge(name, value)
        if len(judged) > MAX_METADATA:
            raise self.refuse(name, value)
        for key, text in judged.items():
            String(max_chars=64).judge(name, key)
            String(max_chars=512).judge(f"{name}.{key[:64]}", text)
        return judged

    def schema(self) -> Schema:
        texts = {"type": "string", "maxLength": 512}
        names = {"maxLength": 64}
        return {"type": "object", "maxProperties": MAX_METADATA, "propertyNames": names, "additionalProperties": texts}


MAX_METADATA = 16

_REASONING = Body(
    "ReasoningOptions",
    {
        "effort": like("reasoning_effort"),
        "summary": _refused("the reasoning itself is returned, not a summary of it", "auto"),
        "generate_summary": _refused("the reasoning itself is returned, not a summary of it", "auto"),
    },
)

_STREAM_OPTIONS = Body(
    "ResponseStreamOptions",
    {"include_obfuscation": Field(Refused((False,)), "must be false: nothing is padded", refused=True)},
)

_OTHER_NAMES = {"max_tokens", "n", "overflow"}
"""Sampling parameters that this API calls otherwise, or does not have."""


_TOLD = Field(String(max_chars=512), "returned as it is")

RESPONSE = Body(
    "ResponseBody",
    {
        "model": MODEL,
        "input": Field(INPUT, "a string, or the items of the conversation so far", required=True),
        "instructions": Field(String(), "a system message in front of the input"),
        "stream": Field(Boolean(), "server-sent events, ended by [DONE]"),
        "stream_options": Field(_STREAM_OPTIONS, "needs stream"),
        **{name: field for name, field in SAMPLING.items() if name not in _OTHER_NAMES},
        "max_output_tokens": like("max_tokens", nothing=(-1,)),
        "top_logprobs": Field(Integer(), "alternatives per token; returns logprobs"),
        "include": Field(ListOf(OneOf(Include)), "what else to return"),
        "text": Field(_TEXT, "what the text must be"),
        "reasoning": Field(_REASONING, "how much to reason"),
        "tools": Field(FlatTools(), "the functions that the model may call", nothing=([],)),
        "tool_choice": Field(FlatToolChoice(), "auto, none, required, a function, or allowed tools"),
        "parallel_tool_calls": like("parallel_tool_calls"),
        "truncation": Field(OneOf(Truncation), "auto cuts the middle of an input that does not fit"),
        "chat_template_kwargs": like("chat_template_kwargs", nothing=({},)),
        "max_reasoning_tokens": like("max_reasoning_tokens"),
        "metadata": Field(Metadata(), "returned as it is"),
        "client_metadata": inert(Object()),
        "safety_identifier": _TOLD,
        "prompt_cache_key": _TOLD,
        "prompt_cache_retention": inert(String()),
        "service_tier": inert(String()),
        "user": inert(String()),
        "max_tool_calls": Field(Integer(1), "of tools that run in the server; there are none, so it is only returned"),
        "store": stateless("send store: false", False),
        "previous_response_id": stateless("send the earlier items in input"),
        "conversation": stateless("send the earlier items in input"),
        "background": _refused("the answer comes in this connection", False),
        "prompt": _refused("there are no stored prompts; send instructions and input"),
        "context_management": _refused("the input is used as it is", []),
    },
)

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "constraint": "text.format",
    "reasoning_effort": "reasoning.effort",
    "overflow": "truncation",
    ".function": "",
}


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What every event says about the request: the fields of a response that are known before the answer.

    `sampling` are those that the request gave; for the others, the model's defaults count.
    """

    fields: Mapping[str, Any]
    sampling: Mapping[str, Any]
    encrypts_reasoning: bool
    spaced: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The namespace and the name of each function that has a joined name."""
    custom: frozenset[str] = frozenset()
    """Tools that are given a text."""

    def without(self, ignored: Collection[str]) -> ResponseFrame:
        """The same for a model that cannot do all that was asked: what was left out is not claimed."""
        if not ignored:
            return self
        neutral = {name: value for place, (name, value) in _LEFT_OUT.items() if place in ignored}
        if "tools" in ignored:
            neutral["tool_choice"] = "auto"
        sampling = {name: value for name, value in self.sampling.items() if name not in ignored}
        return replace(self, fields={**self.fields, **neutral}, sampling=sampling)


_LEFT_OUT: Mapping[str, tuple[str, Any]] = {
    "tools": ("tools", []),
    "tool_choice": ("tool_choice", "auto"),
    "parallel_tool_calls": ("parallel_tool_calls", True),
    "top_logprobs": ("top_logprobs", 0),
    "text.format": ("text", {"format": {"type": FormatType.TEXT}}),
    "reasoning.effort": ("reasoning", {"effort": None, "summary": None}),
}
"""Fields of a request, each with what a response says that did without it."""


def response_request(body: Values, headers: Mapping[str, str]) -> tuple[ParsedRequest, ResponseFrame]:
    turns = turns_of(body["input"], body.get("instructions"))
    messages = turns.messages()
    names = {**_NAMES, **turns.names}
    values = shared_values(body, headers, names) | {"messages": messages}
    values.pop("tools", None)
    if "tools" in body and (functions := body["tools"].functions):
        values["tools"] = functions
        names |= {f"tools[{i}]": place for i, place in enumerate(body["tools"].places)}
    include = body.get("include", ())
    logprobs = Include.LOGPROBS in include or "top_logprobs" in body
    if logprobs:
        values["logprobs"] = body.get("top_logprobs", 0)
    if "max_output_tokens" in body:
        values["max_tokens"] = body["max_output_tokens"]
    if (effort := body.get("reasoning", {}).get("effort")) is not None:
        values["reasoning_effort"] = effort
    if (constraint := _constraint(body.get("text", {}).get("format"))) is not None:
        values["constraint"] = constraint
    if "truncation" in body:
        cuts = body["truncation"] is Truncation.AUTO
        values["overflow"] = Overflow.TRUNCATE_MIDDLE if cuts else Overflow.ERROR
    if "tools" not in values:
        drop_idle_choice(values)
    parsed = parsed_request(body, [values], names, f"resp_{new_hex()}", logprobs=logprobs)
    return parsed, _frame(body, parsed, include)


def _constraint(text_format: Mapping[str, Any] | None) -> Constraint | None:
    kind = FormatType.TEXT if text_format is None else text_format["type"]
    schema = None if text_format is None else text_format.get("schema")
    if kind is FormatType.JSON_SCHEMA and schema is None:
        raise InvalidRequest("text.format.schema is missing", param="text.format.schema")
    if kind is not FormatType.JSON_SCHEMA and schema is not None:
        what = f"text.format.schema does not go with the type {kind}; leave it out, or change the type"
        raise InvalidRequest(what, param="text.format.schema")
    return Constraint(ConstraintForm.JSON) if kind is FormatType.JSON_OBJECT else schema


def _frame(body: Values, parsed: ParsedRequest, include: tuple[Include, ...]) -> ResponseFrame:
    (request,) = parsed.requests
    tools = body.get("tools", ResponseTools(()))
    given_format = body.get("text", {}).get("format")
    fields = {
        "id": parsed.id,
        "object": "response",
        "created_at": int(time.time()),
        "model": body["model"],
        "instructions": body.get("instructions"),
        "max_output_tokens": request.max_tokens,
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body.get("metadata", {}),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": request.reasoning_effort, "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "background": False,
        "text": {"format": _format_json(given_format, request.constraint)},
        "tool_choice": flat_choice(body.get("tool_choice"), tools),
        "tools": tools.as_given(request.tools or ()),
        "top_logprobs": request.logprobs or 0,
        "truncation": body.get("truncation", Truncation.DISABLED),
    }
    sampling = {name: value for name in SAMPLED if (value := getattr(request, name)) is not None}
    return ResponseFrame(
        fields, sampling, Include.ENCRYPTED_REASONING in include, tools.spaced, frozenset(tools.custom)
    )


SAMPLED = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""What a response says of its sampling, each with the value that changes nothing."""


def _format_json(given: Mapping[str, Any] | None, constraint: Constraint | None) -> dict[str, Any]:
    if given is None or constraint is None:
        return {"type": FormatType.TEXT}
    if constraint.form is ConstraintForm.JSON:
        return {"type": FormatType.JSON_OBJECT}
    schema = json.loads(constraint.source)
    told = {"name": given.get("name", "answer"), "description": given.get("description")}
    return {"type": FormatType.JSON_SCHEMA, **told, "schema": schema, "strict": True}
