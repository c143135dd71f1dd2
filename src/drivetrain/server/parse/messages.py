"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, and the request that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from drivetrain.core.constraint import Constraint
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.kinds import Boolean, Integer, ListOf, OneOf, String
from drivetrain.core.messages import Message
from drivetrain.core.request import Overflow
from drivetrain.core.tools import Tool, ToolChoice, ToolMode, Tools
from drivetrain.families.template_variables import REASON
from drivetrain.server.errors import moved
from drivetrain.server.parse.body import Body, Field, Values
from drivetrain.server.parse.messages_content import MESSAGE_LIST, SYSTEM, begins_with_billing, turns_of
from drivetrain.server.parse.schema import (
    MODEL,
    SAMPLING,
    SCHEMA_CONSTRAINT,
    Anything,
    Object,
    Refused,
    inert,
    like,
)
from drivetrain.server.parse.shapes import Several, Tagged
from drivetrain.server.parse.translate import ParsedRequest, drop_idle_choice, new_hex, parsed_request, shared_values


class Thinking(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    ADAPTIVE = "adaptive"


class ChoiceType(StrEnum):
    AUTO = "auto"
    ANY = "any"
    TOOL = "tool"
    NONE = "none"


class OutputType(StrEnum):
    JSON_SCHEMA = "json_schema"


_MODES = {
    ChoiceType.AUTO: ToolMode.AUTO,
    ChoiceType.ANY: ToolMode.REQUIRED,
    ChoiceType.TOOL: ToolMode.REQUIRED,
    ChoiceType.NONE: ToolMode.NONE,
}

_IGNORED = inert(Anything())
_ALL_AT_ONCE = Refused((False,), "is not supported: each tool is told to the model; leave it out, or send false")
_BY_THE_MODEL = Refused((["direct"],), "is not supported: only the model itself calls a tool; leave it out")
_SERVER_TOOL = "tools that run in the server are not supported; send tools of your own"

_TOOLS = Several(
    Tagged(
        {
            "custom": Body(
                "MessagesTool",
                {
                    "name": Field(String(non_empty=True), "what the model calls it", required=True),
                    "description": Field(String(), "what it does"),
                    "input_schema": Field(Object(), "the schema of its input", required=True),
                    "strict": Field(Boolean(), "the input always fits the schema"),
                    "cache_control": _IGNORED,
                    "eager_input_streaming": _IGNORED,
                    "input_examples": _IGNORED,
                    "defer_loading": Field(_ALL_AT_ONCE, "must be false: each tool is told", refused=True),
                    "allowed_callers": Field(_BY_THE_MODEL, "must be direct: the model calls", refused=True),
                },
            )
        },
        usual="custom",
        others=_SERVER_TOOL,
    )
)

_TOOL_CHOICE = Body(
    "MessagesToolChoice",
    {
        "type": Field(OneOf(ChoiceType), "any asks for a call, tool for a call of `name`", required=True),
        "name": Field(String(non_empty=True), "the tool, for the type tool"),
        "disable_parallel_tool_use": Field(Boolean(), "at most one call"),
    },
)

_THINKING = Body(
    "MessagesThinking",
    {
        "type": Field(OneOf(Thinking), "disabled asks a model that reasons not to", required=True),
        "budget_tokens": Field(Integer(1), "the most tokens of reasoning"),
        "display": Field(Refused(("summarized",)), "all reasoning is returned", refused=True),
    },
)

_FORMAT = Body(
    "MessagesFormat",
    {
        "type": Field(OneOf(OutputType), "the one type", required=True),
        "schema": Field(SCHEMA_CONSTRAINT, "the text is JSON of this schema, on one line", required=True),
    },
)

_OUTPUT = Body(
    "MessagesOutput",
    {"format": Field(_FORMAT, "what the text must be"), "effort": like("reasoning_effort")},
)

_EDITED = "is not supported: all messages go to the model as they are; leave it out"
_EDITS = Several(
    Tagged(
        {
            "clear_thinking_20251015": Body(
                "ClearThinking",
                {"keep": Field(Refused(("all",), _EDITED), "must be all: nothing is cleared", required=True)},
            )
        },
        others=_EDITED,
    )
)

_CONTEXT_MANAGEMENT = Body(
    "ContextManagement", {"edits": Field(_EDITS, "edits that leave all messages as they are", inert=True)}
)

_OWN_NAMES = {"max_tokens", "n", "stop", "stop_sequences"}
"""Sampling parameters that this API calls otherwise, means otherwise, or does not have."""

_NO_SERVERS = Refused(([], {}), "is not supported: this server runs no tools")

_ASKED = {
    "model": MODEL,
    "messages": Field(MESSAGE_LIST, "the chat so far: role and content", required=True),
    "system": Field(SYSTEM, "a system message: a string, or blocks of text"),
    "tools": Field(_TOOLS, "the functions that the model may call", nothing=([],)),
    "tool_choice": Field(_TOOL_CHOICE, "whether and which to call"),
    "thinking": Field(_THINKING, "whether to reason"),
    "output_config": Field(_OUTPUT, "what the text must be, and how much to reason"),
    "chat_template_kwargs": like("chat_template_kwargs", nothing=({},)),
    "cache_control": _IGNORED,
    "context_management": Field(_CONTEXT_MANAGEMENT, "only edits that change nothing"),
    "speed": Field(Refused(("standard",)), "must be standard: there is one speed", refused=True),
}
"""What says how long the prompt is, or nothing."""

MESSAGES = Body(
    "MessagesBody",
    {
        **_ASKED,
        "max_tokens": Field(Integer(1), "the most tokens to generate, if the context has room for them", required=True),
        "stop_sequences": Field(ListOf(String(non_empty=True)), "strings that end the answer", nothing=([],)),
        "stream": Field(Boolean(), "server-sent events"),
        **{name: field for name, field in SAMPLING.items() if name not in _OWN_NAMES},
        "max_reasoning_tokens": like("max_reasoning_tokens", "the same as thinking.budget_tokens"),
        "metadata": inert(Object()),
        "service_tier": inert(String()),
        "inference_geo": inert(String()),
        "container": Field(_NO_SERVERS, "not supported", refused=True),
        "mcp_servers": Field(_NO_SERVERS, "not supported", refused=True),
    },
)

COUNT = Body("CountTokensBody", {**_ASKED, "mcp_servers": MESSAGES.fields["mcp_servers"]})

_NAMES = {
    "stop": "stop_sequences",
    "constraint": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    ".function": "",
}


def messages_request(body: Values, headers: Mapping[str, str], *, keeps_billing_line: bool = False) -> ParsedRequest:
    _check_thinking(body)
    system = body.get("system", ())
    if not keeps_billing_line and begins_with_billing(system):
        system = system[1:]
        body.note("system[0]")
    turns = turns_of(body["messages"], system)
    asked = _asked(body, turns.messages())
    names = {**_NAMES, **turns.names, **_thinking_names(body)}
    values = shared_values(body, headers, names) | asked
    values["stop"] = values.pop("stop_sequences", None)
    if "tools" not in values:
        drop_idle_choice(values)
    parsed = parsed_request(body, [values], names, f"msg_{new_hex()}", logprobs=False)
    return replace(parsed, overflow=Overflow.SHORTEN_ANSWER)


def _asked(body: Values, messages: tuple[Message, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "messages": messages,
        **_choice(body.get("tool_choice")),
        **_thinking(body.get("thinking")),
    }
    if "tools" in body:
        values["tools"] = _tools(body["tools"])
    output: Mapping[str, Any] = body.get("output_config", {})
    if "format" in output:
        values["constraint"] = _schema(output["format"])
    if "effort" in output:
        values["reasoning_effort"] = output["effort"]
    return values


def _tools(given: tuple[Mapping[str, Any], ...]) -> tuple[Tool, ...]:
    functions = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "parameters": tool["input_schema"],
                "strict": tool.get("strict", False),
            },
        }
        for tool in given
    ]
    try:
        return Tools().judge("tools", functions)
    except InvalidRequest as exc:
        place = (exc.param or "").replace(".function.parameters", ".input_schema").replace(".function", "")
        raise moved(exc, place) from None


def _choice(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    kind, name = given["type"], given.get("name")
    if (name is not None) != (kind is ChoiceType.TOOL):
        what = "is missing" if name is None else f"does not go with the type {kind}; leave it out"
        raise InvalidRequest(f"tool_choice.name {what}", param="tool_choice.name")
    values: dict[str, Any] = {"tool_choice": ToolChoice(_MODES[kind], () if name is None else (name,))}
    if given.get("disable_parallel_tool_use"):
        values["parallel_tool_calls"] = False
    return values


def _thinking(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    kind, budget = given["type"], given.get("budget_tokens")
    if budget is not None and kind is not Thinking.ENABLED:
        what = f"thinking.budget_tokens does not go with the type {kind}; leave it out"
        raise InvalidRequest(what, param="thinking.budget_tokens")
    if kind is Thinking.DISABLED:
        return {"reasoning_effort": "none"}
    on = {"reasoning_effort": REASON} if kind is Thinking.ENABLED else {}
    return on if budget is None else {**on, "max_reasoning_tokens": budget}


def _check_thinking(body: Values) -> None:
    """Raises `InvalidRequest` for what says the same thing twice, and differently."""
    thinking, limit = body.get("thinking", {}), body.get("max_reasoning_tokens")
    budget = thinking.get("budget_tokens", limit)
    if limit is not None and budget != limit:
        what = f"max_reasoning_tokens is {limit}, but thinking.budget_tokens {budget}; send one of them"
        raise InvalidRequest(what, param="max_reasoning_tokens")
    effort = body.get("output_config", {}).get("effort", "none")
    if thinking.get("type") is Thinking.DISABLED and effort != "none":
        what = f"output_config.effort is {effort}, but thinking is disabled; send one of them"
        raise InvalidRequest(what, param="output_config.effort")


def _thinking_names(body: Values) -> dict[str, str]:
    """What asked for reasoning, for errors about it."""
    effort = "output_config.effort" if "effort" in body.get("output_config", {}) else "thinking.type"
    limit = "max_reasoning_tokens" if "max_reasoning_tokens" in body else "thinking.budget_tokens"
    return {"reasoning_effort": effort, "max_reasoning_tokens": limit}


def _schema(given: Mapping[str, Any]) -> Constraint:
    constraint: Constraint = given["schema"]
    return constraint
