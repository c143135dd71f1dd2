"""Tools that mean harm, over HTTP: a 400 or a typed ending, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.serving import Served, fake, serving

CHAT = "/v1/chat/completions"
TOKENS = 40


@pytest.fixture
def served(unharmed: Served) -> Served:
    return unharmed


def tool(name: Any = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def body(served: Served, *tools: Any, **fields: Any) -> dict[str, Any]:
    return {
        "model": served.model, "messages": [{"role": "user", "content": "x"}], "max_tokens": TOKENS, "temperature": 0,
        "tools": [*tools], **fields,
    }  # fmt: skip


def answered(served: Served, asked: dict[str, Any]) -> tuple[str, str | None, list[tuple[str, str]]]:
    """Finish reason, content and calls, which are the same whole and streamed."""
    status, document = served.post(CHAT, asked)
    assert status == 200, document
    choice = document["choices"][0]
    message = choice["message"]
    whole = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    content, reason = "", ""
    calls: dict[int, tuple[str, str]] = {}
    for chunk in served.events(CHAT, asked)[:-1]:
        (streamed,) = chunk["choices"]
        content += streamed["delta"].get("content") or ""
        reason = streamed["finish_reason"] or reason
        for part in streamed["delta"].get("tool_calls", ()):
            name, arguments = calls.get(part["index"], ("", ""))
            function = part["function"]
            calls[part["index"]] = (name + function.get("name", ""), arguments + function.get("arguments", ""))
    assert (reason, content or None, [calls[i] for i in sorted(calls)]) == (
        choice["finish_reason"], message["content"], whole,
    )  # fmt: skip
    return reason, content or None, whole


NESTED = b'{"items":' * 10_000 + b"{}" + b"}" * 10_000


@pytest.mark.parametrize("strict", [b"true", b"false"])
def test_parameters_nested_ten_thousand_deep(served: Served, strict: bytes) -> None:
    head = b'{"model":"fake","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
    data = head + b'{"name":"f","strict":' + strict + b',"parameters":' + NESTED + b"}}]}"
    status, _, answer = served.request("POST", CHAT, data)
    assert status == 400
    assert len(answer) < 1000


CIRCLES = {
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "an object in itself": {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("parameters", CIRCLES.values(), ids=CIRCLES)
def test_references_in_a_circle(served: Served, parameters: dict[str, Any], choice: str) -> None:
    """What cannot be honoured is refused of a strict tool only."""
    error = served.refused(CHAT, body(served, tool(parameters=parameters, strict=True), tool_choice=choice))
    assert error["param"] == "tools"
    assert "the tool f" in error["message"]
    assert "<state>" not in error["message"]
    answered(served, body(served, tool(parameters=parameters), tool_choice=choice))


HUGE = 10**9


def needs(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": value}, "required": ["a"], "additionalProperties": False}


def test_an_argument_that_must_be_too_long_is_cut(served: Served) -> None:
    asked = body(served, tool(parameters=needs({"type": "string", "minLength": 1000}), strict=True))
    reason, content, calls = answered(served, {**asked, "tool_choice": "required", "max_tokens": 200})
    ((name, arguments),) = calls
    assert (reason, content, name) == ("length", None, "f")
    assert arguments.startswith('{"a"')
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "array", "items": {"type": "null"}, "minItems": HUGE},
        {"type": "string", "pattern": f"^a{{{HUGE}}}$"},
        {"type": "string", "pattern": "^((a{1000}){1000}){1000}$"},
    ],
)
def test_counts_that_cannot_be_compiled(served: Served, value: dict[str, Any]) -> None:
    error = served.refused(CHAT, body(served, tool(parameters=needs(value), strict=True)))
    assert error["param"] == "tools"
    assert "<state>" not in error["message"]
    answered(served, body(served, tool(parameters=needs(value)), tool_choice="required"))


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "function": {"name": "f7"}}])
def test_five_thousand_tools(served: Served, choice: Any) -> None:
    error = served.refused(CHAT, body(served, *(tool(f"f{i}") for i in range(5000)), tool_choice=choice))
    assert error["param"] == "tools"
    assert "5,000" in error["message"]


MALFORMED: list[Any] = [
    {"properties": []},
    {"properties": {"a": 5}},
    {"properties": {"a": {"type": "nonsense"}}},
    {"properties": {"a": {"pattern": "("}}},
    {"properties": {"a": {"minLength": -1}}},
    {"required": "a"},
    {"enum": 5},
    {"$ref": "#/nowhere"},
    {"$ref": "http://127.0.0.1:1/schema"},
]


@pytest.mark.parametrize("parameters", MALFORMED, ids=str)
def test_a_schema_that_is_none(served: Served, parameters: Any) -> None:
    """Nothing is fetched for a reference."""
    for choice in ("auto", "required"):
        asked = body(served, tool(parameters=parameters, strict=True), tool_choice=choice)
        assert served.refused(CHAT, asked)["param"] == "tools"


@pytest.mark.parametrize(
    "parameters", [[], "x", 5, True, {"type": 5}, {"type": "nonsense"}, {"type": "array"}], ids=str
)
def test_parameters_that_are_no_object(served: Served, parameters: Any) -> None:
    error = served.refused(CHAT, body(served, tool(parameters=parameters)))
    assert error["param"] == "tools[0].function.parameters"


MARKERS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "[TOOL_CALLS]",
    "<|im_end|>",
    '"',
    "{}",
    "f\n",
    "f(",
    "",
    "x" * 129,
]


@pytest.mark.parametrize("name", [*MARKERS, "\ud83d", None, 5, ["f"], {}], ids=ascii)
def test_a_name_that_no_model_could_tell_from_a_marker(served: Served, name: Any) -> None:
    """For the choice of a tool too, which must be one of those there are."""
    assert served.refused(CHAT, body(served, tool(name)))["param"] == "tools[0].function.name"
    named = {"type": "function", "function": {"name": name}}
    assert served.refused(CHAT, body(served, tool(), tool_choice=named))["param"].startswith("tool_choice")


@pytest.mark.parametrize("name", ["tool_call", "name", "arguments", "think", "functools", "null", "call", "true"])
def test_a_name_that_is_a_word_of_the_forms(name: str) -> None:
    text = f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": "<tool_call></tool_call>"}}}}\n</tool_call>'
    offered = tool(name, parameters=needs({"type": "string"}), strict=True)
    with serving(fake(text=text)) as served:
        for choice in ("auto", "required"):
            asked = body(served, offered, tool_choice=choice, max_tokens=200)
            reason, content, calls = answered(served, asked)
            assert (reason, content, calls) == ("tool_calls", None, [(name, '{"a": "<tool_call></tool_call>"}')])


@pytest.mark.parametrize(
    "data",
    [
        b'"tools":[{"type":"function","function":{"name":"f","description":"\\ud83d"}}]',
        b'"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"\\ud83d":{}}}}}]',
        b'"tools":[{"type":"function","function":{"name":"f","parameters":{"description":"\\ude00"}}}]',
        b'"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"\\ud83d","type":"function",'
        b'"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"\\ud83d","content":"x"}]',
        b'"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"c","type":"function",'
        b'"function":{"name":"f","arguments":"{\\"a\\": \\"\\ud83d\\"}"}}]}]',
    ],
    ids=["description", "key", "inside the schema", "id", "arguments"],
)
def test_half_a_surrogate_in_a_request(served: Served, data: bytes) -> None:
    whole = b'{"model":"fake","max_tokens":4,"messages":[{"role":"user","content":"x"}],' + data + b"}"
    if b'"messages"' in data:
        whole = b'{"model":"fake","max_tokens":4,' + data + b"}"
    status, _, answer = served.request("POST", CHAT, whole)
    assert status == 400, answer
    assert "lone surrogate" in json.loads(answer)["error"]["message"]
