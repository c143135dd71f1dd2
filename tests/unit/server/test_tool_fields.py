"""Tools and reasoning over HTTP: what each field means, what is refused, and by which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivetrain.core.capabilities import Capabilities, Limits
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.parameters import PARAMETERS, check
from drivetrain.core.request import GenerateRequest
from drivetrain.core.tools import NO_PARAMETERS, Tool, ToolChoice, ToolMode
from drivetrain.server.endpoints import openapi
from drivetrain.server.parse.body import read_object
from drivetrain.server.parse.responses_tools import FlatToolChoice, FlatTools, ResponseTools
from drivetrain.server.parse.schema import CHAT, COMPLETION
from drivetrain.server.parse.translate import ParsedRequest, chat_request, completion_request, honoured
from drivetrain.server.settings import ServerSettings

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ABLE = Capabilities(parameters=frozenset(PARAMETERS), context_length=99)


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


WEATHER, CLOCK = function("get_weather", parameters=SCHEMA), function("clock")


def chat(*, lenient: bool = False, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return chat_request(CHAT.judge(body, lenient=lenient), {})


def completion(*, lenient: bool = False, **fields: Any) -> ParsedRequest:
    body = {"model": "m", "prompt": "x", **fields}
    return completion_request(COMPLETION.judge(body, lenient=lenient), {}, max_prompts=1)


def asked(parsed: ParsedRequest) -> GenerateRequest:
    return parsed.requests[0]


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check(asked(chat(**fields)), ABLE)
    return caught.value


def test_tools() -> None:
    strict = function("f-1.x", description="d", parameters={}, strict=True)
    lazy = {"function": {"name": "g", "description": None, "parameters": None, "strict": None}}
    assert asked(chat(tools=[WEATHER, strict, lazy])).tools == (
        Tool("get_weather", "", json.dumps(SCHEMA)),
        Tool("f-1.x", "d", '{"type": "object"}', strict=True),
        Tool("g", "", NO_PARAMETERS),
    )


CHOICES: list[tuple[Any, ToolChoice]] = [
    ("auto", ToolChoice()),
    ("none", ToolChoice(ToolMode.NONE)),
    ("required", ToolChoice(ToolMode.REQUIRED)),
    (function("clock"), ToolChoice(ToolMode.REQUIRED, ("clock",))),
    ({"function": {"name": "clock"}}, ToolChoice(ToolMode.REQUIRED, ("clock",))),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CLOCK, CLOCK]}},
        ToolChoice(ToolMode.AUTO, ("clock",)),
    ),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK, function("get_weather")]}},
        ToolChoice(ToolMode.REQUIRED, ("clock", "get_weather")),
    ),
]


@pytest.mark.parametrize(("given", "meant"), CHOICES, ids=[json.dumps(given)[:40] for given, _ in CHOICES])
def test_each_form_of_a_choice(given: Any, meant: ToolChoice) -> None:
    request = asked(chat(tools=[WEATHER, CLOCK], tool_choice=given))
    check(request, ABLE)
    assert request.tool_choice == meant


def test_the_other_fields_go_to_the_worker_as_they_are() -> None:
    kwargs = {"enable_thinking": False, "nested": {"a": [1, None]}}
    request = asked(
        chat(
            tools=[CLOCK],
            parallel_tool_calls=False,
            chat_template_kwargs=kwargs,
            reasoning_effort="low",
            max_reasoning_tokens=0,
        )
    )
    assert request.parallel_tool_calls is False
    assert request.chat_template_kwargs == kwargs
    assert (request.reasoning_effort, request.max_reasoning_tokens) == ("low", 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
        {"tool_choice": "auto"},
        {"tool_choice": "none", "tools": []},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False, "tool_choice": "none"},
        {"chat_template_kwargs": {}},
        {"reasoning_effort": None, "max_reasoning_tokens": None},
        {"functions": [], "function_call": "auto"},
    ],
)
def test_what_asks_for_nothing_is_left_out(fields: dict[str, Any]) -> None:
    plain = asked(chat()).given().keys()
    assert asked(chat(**fields)).given().keys() == plain
    unable = Capabilities(parameters=frozenset({"messages", "request_id"}), context_length=99)
    check(asked(chat(**fields)), unable)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": "clock"}, "tools", "a list of tools"),
    ({"tools": {"name": "clock"}}, "tools", "a list of tools"),
    ({"tools": ["clock"]}, "tools[0]", "must be an object"),
    ({"tools": [WEATHER, {}]}, "tools[1].function", "an object with a name"),
    ({"tools": [{"type": "function", "name": "flat"}]}, "tools[0].function", "an object with a name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only functions"),
    ({"tools": [*[function(f"f{i}") for i in range(3)], function("a b")]}, "tools[3].function.name", "'a b'"),
    ({"tools": [function("<tool_call>")]}, "tools[0].function.name", "<tool_call>"),
    ({"tools": [function("x" * 129)]}, "tools[0].function.name", "up to 128"),
    ({"tools": [function("")]}, "tools[0].function.name", "letters"),
    ({"tools": [{"function": {"name": None}}]}, "tools[0].function.name", "None"),
    ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name", "earlier tool"),
    ({"tools": [function("f", description=1)]}, "tools[0].function.description", "a string"),
    ({"tools": [function("f", description="\ud800")]}, "tools[0].function.description", "surrogate"),
    ({"tools": [function("f", strict="yes")]}, "tools[0].function.strict", "true or false"),
    ({"tools": [function("f", parameters=[])]}, "tools[0].function.parameters", "schema of an object"),
    ({"tools": [function("f", parameters={"type": "string"})]}, "tools[0].function.parameters", "schema of an object"),
    ({"tools": [CLOCK], "tool_choice": "clock"}, "tool_choice", "auto, none, required"),
    ({"tools": [CLOCK], "tool_choice": 1}, "tool_choice", "auto, none, required"),
    ({"tools": [CLOCK], "tool_choice": function("other")}, "tool_choice", "'other'"),
    ({"tools": [CLOCK], "tool_choice": {"type": "function"}}, "tool_choice.function.name", "is missing"),
    ({"tools": [CLOCK], "tool_choice": {"type": "custom"}}, "tool_choice.type", "'custom'"),
    (
        {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice.allowed_tools.tools",
        "not empty",
    ),
    (
        {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": [CLOCK]}}},
        "tool_choice.allowed_tools.mode",
        "auto or required",
    ),
    ({"tools": [function("f", colour=1)]}, "tools[0].function.colour", "name, description, parameters, strict"),
    ({"tools": [CLOCK, {**WEATHER, "colour": None}]}, "tools[1].colour", "type, function"),
    ({"tools": [CLOCK], "tool_choice": {**CLOCK, "colour": 1}}, "tool_choice.colour", "type, function"),
    ({"tools": [CLOCK], "tool_choice": function("clock", colour=1)}, "tool_choice.function.colour", "name"),
    (
        {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [CLOCK], "colour": 1}},
        "tool_choice.colour",
        "type, mode, tools",
    ),
    (
        {"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [CLOCK], "colour": 1}}},
        "tool_choice.allowed_tools.colour",
        "mode, tools",
    ),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tools": [], "tool_choice": function("clock")}, "tool_choice", "no tools"),
    ({"tools": [CLOCK], "parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
    ({"chat_template_kwargs": ["a"]}, "chat_template_kwargs", "an object"),
    ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs", "surrogate"),
    ({"reasoning_effort": ""}, "reasoning_effort", "empty"),
    ({"reasoning_effort": 3}, "reasoning_effort", "a string"),
    ({"max_reasoning_tokens": -2}, "max_reasoning_tokens", "from 0"),
    ({"max_reasoning_tokens": True}, "max_reasoning_tokens", "an integer"),
    ({"functions": [{"name": "f"}]}, "functions", "send tools"),
    ({"function_call": {"name": "f"}}, "function_call", "send tool_choice"),
    ({"enable_thinking": False}, "enable_thinking", "chat_template_kwargs"),
]


@pytest.mark.parametrize(
    ("fields", "param", "words"), REFUSED, ids=[f"{param}-{n}" for n, (_, param, _) in enumerate(REFUSED)]
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert words in error.message
    assert len(error.message) < 300


def test_too_many_tools() -> None:
    few = Capabilities(parameters=frozenset(PARAMETERS), context_length=99, limits=Limits(max_tools=2))
    check(asked(chat(tools=[WEATHER, CLOCK])), few)
    with pytest.raises(InvalidRequest, match="tools is 3 entries; the limit is 2") as caught:
        check(asked(chat(tools=[WEATHER, CLOCK, function("f")])), few)
    assert caught.value.param == "tools"


def test_128_tools_pass_the_limits_on_bodies() -> None:
    fields = {
        f"field_{i}": {"type": "string", "enum": ["a", "b", "c"], "description": "What it is for. " * 4}
        for i in range(12)
    }
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    tools = [function(f"tool_{i}", description="What it does. " * 20, parameters=schema) for i in range(128)]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    data = json.dumps(body, indent=2).encode()
    settings = ServerSettings()
    assert 200_000 < len(data) < settings.max_body_bytes
    judged = CHAT.judge(read_object(data, settings.max_body_values), lenient=False)
    request = asked(chat_request(judged, {}))
    assert request.tools is not None
    assert [json.loads(tool.parameters) for tool in request.tools] == [schema] * 128
    check(request, ABLE)


FOR_CHATS: dict[str, Any] = {
    "tools": [CLOCK],
    "tool_choice": "required",
    "parallel_tool_calls": 1,
    "chat_template_kwargs": {"a": 1},
    "max_reasoning_tokens": 1,
    "functions": [{"name": "f"}],
}


@pytest.mark.parametrize("name", FOR_CHATS)
def test_a_completion_has_none_of_it(name: str) -> None:
    with pytest.raises(Unsupported, match=f"^{name} goes with messages; send it to /v1/chat/completions") as caught:
        completion(**{name: FOR_CHATS[name]})
    assert caught.value.param == name
    lenient = completion(lenient=True, **{name: FOR_CHATS[name]})
    assert lenient.ignored == (name,)
    assert getattr(asked(lenient), name, None) is None


def test_what_asks_a_completion_for_nothing() -> None:
    parsed = completion(
        tools=[], tool_choice="auto", parallel_tool_calls=True, chat_template_kwargs={}, reasoning_effort="high"
    )
    assert parsed.ignored == ()
    assert asked(parsed).given().keys() == asked(completion()).given().keys()


def test_a_lenient_server_leaves_out_tools_that_are_no_functions() -> None:
    parsed = chat(lenient=True, tools=[{"type": "web_search"}, CLOCK, {"type": "custom", "custom": {}}])
    assert asked(parsed).tools == (Tool("clock"),)
    assert parsed.ignored == ("tools[0]", "tools[2]")
    none = chat(lenient=True, tools=[{"type": "web_search"}], tool_choice="auto")
    assert asked(none).given().keys() == asked(chat()).given().keys()
    with pytest.raises(InvalidRequest) as caught:
        chat(lenient=True, tools=[CLOCK, function("a b")])
    assert caught.value.param == "tools[1].function.name"


def test_a_lenient_server_leaves_out_unknown_keys() -> None:
    tool = {**function("clock", strict=True, colour=1), "mood": 2}
    parsed = chat(lenient=True, tools=[tool], tool_choice=function("clock", colour=1))
    assert asked(parsed).tools == (Tool("clock", strict=True),)
    assert asked(parsed).tool_choice == ToolChoice(ToolMode.REQUIRED, ("clock",))
    assert parsed.ignored == ("tools[0].mood", "tools[0].function.colour", "tool_choice.function.colour")


def test_the_flat_form_names_its_own_places() -> None:
    left_out: list[str] = []
    flat = {"type": "function", "name": "clock", "colour": 1}
    assert FlatTools().judge_leniently("tools", [flat], left_out.append) == ResponseTools(
        (Tool("clock"),), places=("tools[0]",)
    )
    choice = FlatToolChoice().judge_leniently("tool_choice", flat, left_out.append)
    assert choice == ToolChoice(ToolMode.REQUIRED, ("clock",))
    assert left_out == ["tools[0].colour", "tool_choice.colour"]


def test_a_model_without_tools() -> None:
    """A lenient server leaves them out with all that goes with them; a strict one refuses them."""
    unable = Capabilities(parameters=frozenset(PARAMETERS) - {"tools", "max_reasoning_tokens"}, context_length=99)
    fields: dict[str, Any] = {
        "tools": [CLOCK],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_reasoning_tokens": 5,
    }
    dropped = honoured(chat(lenient=True, **fields), unable)
    assert asked(dropped).given().keys() == asked(chat()).given().keys()
    assert dropped.headers == {"x-drivetrain-ignored": "tools, max_reasoning_tokens"}
    check(asked(dropped), unable)
    with pytest.raises(Unsupported, match="tools is not supported by this model") as caught:
        check(asked(chat(**fields)), unable)
    assert caught.value.param == "tools"


def test_a_template_that_does_not_read_a_variable() -> None:
    """A lenient server leaves it out, and an effort that nothing reads."""
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False, "mood": 1}, "reasoning_effort": "low"}
    thinks = Capabilities(
        parameters=frozenset(PARAMETERS), context_length=99, template_variables=frozenset({"enable_thinking"})
    )
    some = honoured(chat(lenient=True, **fields), thinks)
    assert asked(some).chat_template_kwargs == {"enable_thinking": False}
    assert asked(some).reasoning_effort == "low"
    assert some.ignored == ("chat_template_kwargs.mood",)
    none = honoured(chat(lenient=True, **fields), ABLE)
    assert not asked(none).chat_template_kwargs
    assert asked(none).reasoning_effort is None
    assert none.ignored == ("reasoning_effort", "chat_template_kwargs.enable_thinking", "chat_template_kwargs.mood")
    strict = chat(**fields)
    assert honoured(strict, ABLE) is strict


def test_they_are_in_the_document() -> None:
    schemas = openapi.build()["components"]["schemas"]
    chat_fields = schemas["ChatBody"]["properties"]
    assert chat_fields["tools"]["description"] == PARAMETERS["tools"].meaning
    assert chat_fields["max_reasoning_tokens"]["description"] == PARAMETERS["max_reasoning_tokens"].meaning
    assert schemas["CompletionBody"]["properties"]["tools"]["description"].startswith("for chats")
