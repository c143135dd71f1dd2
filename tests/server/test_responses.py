"""`/v1/responses` through the official client and over the bare wire: on each engine, and with a scripted model."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from drivetrain.core.errors import EngineFailed
from server.conftest import can
from server.serving import Served, fake, says, serving, thoughtful
from server.sse import events

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": False,
    },
    {"type": "function", "name": "now", "parameters": None, "strict": False},
]
CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź \\"1\\" 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ARGUMENTS = '{"city": "Łódź \\"1\\" 🙂"}'
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


def ask(served: Served, **fields: Any) -> Any:
    given = {"model": served.model, "input": "How is the weather in Łódź?", "max_output_tokens": 400, "temperature": 0}
    return served.client.responses.create(**{**given, **fields})


def streamed(served: Served, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    body = {"model": served.model, "input": "hello", "max_output_tokens": 400, "temperature": 0, **fields}
    status, headers, data = served.request("POST", "/v1/responses", {**body, "stream": True})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), data
    assert data.endswith(b"data: [DONE]\n\n")
    return events(data)


def test_text_on_each_engine(served: Served) -> None:
    """Whole, as the client's stream, and from a chat with the same prompt: the same text and usage."""
    asked: dict[str, Any] = {"model": served.model, "max_output_tokens": 8, "temperature": 0}
    whole = served.client.responses.create(input="Hello there", instructions="Be brief.", **asked)
    with served.client.responses.stream(input="Hello there", instructions="Be brief.", **asked) as stream:
        sent = list(stream)
    deltas = "".join(event.delta for event in sent if event.type == "response.output_text.delta")
    assert sent[-1].type in ("response.completed", "response.incomplete")
    final = sent[-1].response
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
    chat = served.client.chat.completions.create(
        model=served.model, messages=messages, max_tokens=8, temperature=0
    )  # fmt: skip
    assert whole.output_text == final.output_text == deltas == chat.choices[0].message.content
    assert whole.usage is not None
    assert chat.usage is not None
    assert whole.usage.total_tokens == chat.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert (whole.status == "incomplete") == (chat.choices[0].finish_reason == "length")


def test_a_response_says_what_was_asked() -> None:
    with says("Fine.") as served:
        response = ask(served, instructions="Be brief.", metadata={"a": "b"}, tools=TOOLS, tool_choice="none")
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert [tool.name for tool in response.tools] == ["get_weather", "now"]
    assert response.tool_choice == "none"
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")


def test_what_was_not_asked_is_the_models_own_default() -> None:
    with serving(fake({"temperature": 0.25}, text="Fine.")) as served:
        response = served.client.responses.create(model=served.model, input="hello")
        given = ask(served)
    assert (response.temperature, response.top_p) == (0.25, 1.0)
    assert given.temperature == 0


@pytest.mark.parametrize("ids_per_step", [1, 3, 50])
def test_calls_whole_and_streamed(ids_per_step: int) -> None:
    with says(CALLS, ids_per_step=ids_per_step) as served:
        whole = ask(served, tools=TOOLS)
        sent = streamed(served, tools=TOOLS)
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    assert [(item.name, item.arguments) for item in whole.output[1:]] == [("get_weather", ARGUMENTS), ("now", "{}")]
    last = sent[-1][1]["response"]
    assert [item["type"] for item in last["output"]] == ["message", "function_call", "function_call"]
    assert [item["arguments"] for item in last["output"][1:]] == [ARGUMENTS, "{}"]
    assert last["output"][0]["content"][0]["text"] == whole.output_text == "Let me see."


def test_the_order_of_events() -> None:
    with says(CALLS, ids_per_step=4) as served:
        sent = streamed(served, tools=TOOLS)
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    names = [name.removeprefix("response.") for name, _ in sent]
    once = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    message = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    ended = ["content_part.done", "output_item.done"]
    assert once == ["created", "in_progress", *message, *ended, *call, *call, "completed"]


def test_the_round_trip_of_a_call() -> None:
    with says(CALLS) as served:
        first = ask(served, tools=TOOLS)
        items: list[Any] = [{"role": "user", "content": "hello"}, *first.output]
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in first.output[1:]
        ]
        again = ask(served, tools=TOOLS, input=[*items, *results])
        assert again.usage.input_tokens > first.usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            ask(served, tools=TOOLS, input=[*items, {**results[0], "call_id": "call_0"}])
    assert caught.value.body["param"] == "input[4].call_id"  # type: ignore[index]


SEARCH = {"type": "web_search", "external_web_access": False}
SPACES = [
    {"type": "namespace", "name": "mcp__sky__", "description": "Of the sky.", "tools": TOOLS},
    {"type": "namespace", "name": "clock", "tools": [{**TOOLS[1], "description": "The time."}]},
]
"""As MCP servers come: the same name may be in each."""


def test_functions_in_namespaces() -> None:
    """The model is told of joined names; the client gets its own back, whole, streamed, and as what was asked."""
    arguments = {"mcp__sky__get_weather": {"city": "Oslo"}}
    said = [json.dumps({"name": name, "arguments": arguments.get(name, {})}) for name in _JOINED]
    calls = "".join(f"<tool_call>\n{call}\n</tool_call>" for call in said)
    with says(calls) as served:
        whole = ask(served, tools=[TOOLS[1], *SPACES])
        sent = streamed(served, tools=[TOOLS[1], *SPACES])
        items: list[Any] = [{"role": "user", "content": "hello"}, *(_given(item) for item in whole.output)]
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in whole.output
        ]
        again = ask(served, tools=[TOOLS[1], *SPACES], input=[*items, *results])
    for item in (data["item"] for name, data in sent if name == "response.output_item.done"):
        assert (item.get("namespace"), item["name"]) == _JOINED[_joined(item)]
    for response in (whole, again):
        assert [(_given(item).get("namespace"), item.name) for item in response.output] == list(_JOINED.values())
    told = sent[0][1]["response"]["tools"]
    assert [(tool["type"], tool["name"]) for tool in told] == [
        ("function", "now"), ("namespace", "mcp__sky__"), ("namespace", "clock"),
    ]  # fmt: skip
    assert [tool["name"] for tool in told[1]["tools"]] == ["get_weather", "now"]


def test_a_function_of_a_namespace_is_chosen_by_its_two_names() -> None:
    named = {"type": "function", "name": "now", "namespace": "clock"}
    with says('<tool_call>\n{"name": "clock__now", "arguments": {}}\n</tool_call>') as served:
        for choice in (named, {"type": "allowed_tools", "mode": "required", "tools": [named]}):
            response = ask(served, tools=SPACES, tool_choice=choice)
            assert [_given(item)["namespace"] for item in response.output] == ["clock"]
            assert _given(response)["tool_choice"] == named


LINES = 'start: "*** Begin" LF line+\nline: "+" /.*/ LF\n%import common.LF'
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": LINES},
}
FREE = {**PATCH, "format": {"type": "text"}}
GIVEN = '*** Begin\n+say "hi" \\ 🗼\n+\n'


def patched(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "apply_patch", "arguments": {arguments}'


def inputs(sent: list[tuple[str, dict[str, Any]]]) -> tuple[list[str], str]:
    """The pieces, and the whole as it is told behind them."""
    (done,) = (data["input"] for name, data in sent if name == "response.custom_tool_call_input.done")
    items = sent[-1][1]["response"]["output"]
    assert [item["input"] for item in items if item["type"] == "custom_tool_call"] == [done]
    return [data["delta"] for name, data in sent if name == "response.custom_tool_call_input.delta"], done


def test_a_tool_that_is_given_a_text() -> None:
    """The model is told of a function; the client has its own kind of call, and sends it back."""
    arguments = json.dumps({"input": GIVEN}, ensure_ascii=False)
    with says(patched(arguments + "}\n</tool_call>")) as served:
        for choice in ({"type": "custom", "name": "apply_patch"}, "required", "auto"):
            response = ask(served, tools=[PATCH, *TOOLS], tool_choice=choice)
            (item,) = response.output
            assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", GIVEN)
            assert item.status == "completed"
            assert _given(response)["tool_choice"] == choice
        first = ask(served, tools=[PATCH])
        assert _given(first)["tools"] == [PATCH]
        result = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "done"}
        again = ask(served, tools=[PATCH], input=[{"role": "user", "content": "hello"}, _given(item), result])
    assert again.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("ids_per_step", [1, 7, 500])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (json.dumps({"input": GIVEN}), GIVEN),
        (json.dumps({"input": GIVEN}, ensure_ascii=False), GIVEN),
        ('{"input": "cut', "cut"),
        ('{"input": "\\ud83d and \\\\ud83d', "\ufffd and \\ud83d"),
        ('{ "input" :"a", "more": 1}', "a"),
        ('{"patch": 1}', '{"patch": 1}'),
        ("{}", "{}"),
        ('{"input": "a\nb"}', "a"),
        ("{" + " " * 300 + '"input": "a"}', "{" + " " * 300 + '"input": "a"}'),
    ],
)
def test_what_a_tool_is_given_streams(arguments: str, text: str, ids_per_step: int) -> None:
    """Whatever the model wrote, where nothing holds it to the tool's format."""
    engine = fake(text=patched(arguments), ids_per_step=ids_per_step, unsupported=frozenset({"constraint"}))
    with serving(engine) as served:
        item = next(i for i in ask(served, tools=[FREE]).output if i.type == "custom_tool_call")
        pieces, done = inputs(streamed(served, tools=[FREE]))
    assert item.input == "".join(pieces) == done == text
    assert (item.status == "completed") == (arguments.endswith("}") and "\nb" not in arguments)
    assert len(pieces) == 1 or ids_per_step < 500


def test_what_a_lenient_server_leaves_out_of_a_namespace_takes_no_name() -> None:
    """Nor does an error about a tool count those that are not told to the model."""
    custom = {"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "f"}]}
    tools = [SEARCH, custom, {**TOOLS[1], "name": "a__f"}]
    with serving(
        fake(text='<tool_call>\n{"name": "a__f", "arguments": {}}\n</tool_call>'), unknown_fields="warn"
    ) as served:
        response = ask(served, tools=tools, tool_choice="required")
        (item,) = response.output
        assert (_given(item).get("namespace"), item.name) == (None, "a__f")
    unable = {"type": "function", "name": "g", "parameters": {"type": "object"}, "strict": True}
    with serving(fake(unsupported=frozenset({"constraint"}))) as served:
        for given, place in (([SEARCH, unable], "tools[1]"), ([{**custom, "tools": [unable]}], "tools[0].tools[0]")):
            error = served.refused("/v1/responses", {"model": served.model, "input": "x", "tools": given})
            assert error["param"] == f"{place}.strict"


_JOINED = {
    "mcp__sky__get_weather": ("mcp__sky__", "get_weather"),
    "clock__now": ("clock", "now"),
    "now": (None, "now"),
}


def _joined(item: dict[str, Any]) -> str:
    return next(name for name, parts in _JOINED.items() if parts == (item.get("namespace"), item["name"]))


def _given(item: Any) -> dict[str, Any]:
    given: dict[str, Any] = item.model_dump(exclude_none=True)
    return given


def test_what_asks_the_server_for_nothing() -> None:
    asks_nothing: dict[str, Any] = {"client_metadata": {"thread": "1"}, "tools": [SEARCH]}
    with says("Fine.") as served:
        plain = ask(served)
        found = ask(served, extra_body=asks_nothing)
        leading = [{"role": "developer", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]
        assert ask(served, input=[*leading, {"role": "user", "content": "hello"}]).output_text == "Fine."
    assert (found.usage, found.output_text, found.tools) == (plain.usage, plain.output_text, [])


def test_reasoning_is_an_item_of_its_own() -> None:
    with serving(thoughtful(text="<think>\nEasy.\n</think>\n\nParis", ids_per_step=3)) as served:
        whole = ask(served, include=["reasoning.encrypted_content"])
        sent = streamed(served)
        thought = whole.output[0].model_dump()
        kept = {key: thought[key] for key in ("id", "type", "summary", "encrypted_content")}
        again = [{"role": "user", "content": "hi"}, kept, {"role": "assistant", "content": "Paris"}]
        ask(served, input=[*again, {"role": "user", "content": "Why?"}])
        refused = served.refused(
            "/v1/responses", {"model": served.model, "input": [{**kept, "encrypted_content": "?"}]}
        )
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert (thought["content"][0]["text"], whole.output_text) == ("Easy.", "Paris")
    joined = "".join(data["delta"] for name, data in sent if name == "response.reasoning.delta")
    assert joined == "Easy."
    assert refused["param"] == "input[0].encrypted_content"


def test_a_schema_on_each_engine(served: Served) -> None:
    if not can(served, "response_format"):
        pytest.skip("this engine honours no schema")
    text: Any = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    response = served.client.responses.create(
        model=served.model, input="Who?", text=text, max_output_tokens=60, temperature=0
    )
    assert json.loads(response.output_text)["name"] in ("Ada", "Bob")
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


def test_logprobs_cover_the_text() -> None:
    with says("Fine, thanks.") as served:
        whole = ask(served, top_logprobs=2)
        sent = streamed(served, include=["message.output_text.logprobs"])
    entries = whole.output[0].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "Fine, thanks."
    assert {len(entry.top_logprobs) for entry in entries} == {2}
    pieces = [entry for name, data in sent if name == "response.output_text.delta" for entry in data["logprobs"]]
    assert b"".join(bytes(entry["bytes"]) for entry in pieces).decode() == "Fine, thanks."


def test_a_receipt_comes_with_the_end() -> None:
    with says("Fine.") as served:
        _, whole = served.post("/v1/responses", {"model": served.model, "input": "hello", "receipt": True})
        sent = streamed(served, receipt=True)
        _, _, plain = served.request("POST", "/v1/responses", {"model": served.model, "input": "hello"})
    told = [data["response"].get("receipt") for _, data in sent if "response" in data]
    assert told[:-1] == [None, None]
    assert told[-1]["model"] == whole["receipt"]["model"]
    assert b"receipt" not in plain


def test_an_answer_that_is_cut_off() -> None:
    with says("one two three four") as served:
        whole = ask(served, max_output_tokens=5)
        name, data = streamed(served, max_output_tokens=5)[-1]
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.output[0].status == "incomplete"
    assert name == "response.incomplete"
    assert data["response"]["output"][0]["status"] == "incomplete"


def test_an_engine_that_fails_in_the_middle() -> None:
    with says("one two three four", fault=EngineFailed("it broke"), fault_at_step=5) as served:
        sent = streamed(served)
    assert [name for name, _ in sent[-2:]] == ["error", "response.failed"]
    assert sent[-2][1]["error"]["code"] == "engine_error"
    assert sent[-1][1]["response"]["status"] == "failed"


def test_logprobs_are_of_the_text_alone() -> None:
    with serving(thoughtful(text="<think>why not</think>Paris")) as served:
        whole = ask(served, top_logprobs=0)
        sent = streamed(served, top_logprobs=0)
    entries = whole.output[1].content[0].logprobs
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "Paris"
    pieces = [entry for name, data in sent if name == "response.output_text.delta" for entry in data["logprobs"]]
    assert b"".join(bytes(entry["bytes"]) for entry in pieces).decode() == "Paris"


def test_what_a_lenient_server_left_out_is_not_claimed() -> None:
    """And a failure goes on where the events stopped."""
    script: dict[str, Any] = {
        "unsupported": frozenset({"logprobs", "constraint"}),
        "fault": EngineFailed("no"),
        "fault_at_step": 5,
    }
    asked = {"tools": TOOLS, "tool_choice": "required", "top_logprobs": 3}
    with serving(fake(text="one two three", **script), unknown_fields="warn") as served:
        sent = streamed(served, **asked)
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    assert sent[-1][0] == "response.failed"
    told = sent[0][1]["response"]
    assert (told["tool_choice"], told["top_logprobs"]) == ("auto", 0)


def test_an_error_about_a_picture_names_its_item() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
    with serving(fake(vision=True)) as served:
        error = served.refused(
            "/v1/responses",
            {"model": served.model, "instructions": "Look.", "input": [{"role": "user", "content": [image]}]},
        )
    assert error["param"].startswith("input[0].content[0]")


_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": "x", "colour": 1}]}, "input[0].colour"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": "\ud800"}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"n": 2}, "n"),
        ({"metadata": {"a": "\ud800"}}, "metadata.a"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {f"{i}": "" for i in range(17)}}, "metadata"),
        ({"input": [_CALL] * 129}, "input[128]"),
        ({"tools": [{"type": "function", "name": "f", "colour": 1}]}, "tools[0].colour"),
        ({"tools": [{"type": "function", "name": "f", "functional": 1}]}, "tools[0].functional"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "now", "colour": 1}}, "tool_choice.colour"),
        ({"tools": [{"type": "function", "name": "a.function"}] * 2}, "tools[1].name"),
        ({"messages": []}, "messages"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"max_output_tokens": -2}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{**SEARCH, "external_web_access": True}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "now"}, TOOLS[1]]}, "tools[1].name"),
        ({"tools": [{**PATCH, "colour": 1}]}, "tools[0].colour"),
        ({"tools": [{**PATCH, "format": {"type": "gbnf"}}]}, "tools[0].format.type"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "definition": "a"}}]}, "tools[0].format.syntax"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "regex"}}]}, "tools[0].format.definition"),
        (
            {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "a)|(b"}}]},
            "tools[0].format.definition",
        ),
        (
            {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "start: start"}}]},
            "tools[0].format.definition",
        ),
        ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f"}]}, "input[0].input"),
        ({"tools": [{"type": "namespace", "tools": TOOLS}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [], "colour": 1}]}, "tools[0].colour"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [SEARCH]}]}, "tools[0].tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [TOOLS[1], {"type": "namespace", "name": "n", "tools": [TOOLS[1]] * 2}]}, "tools[1].tools[1].name"),
        ({"tools": [{"type": "namespace", "name": "n" * 128, "tools": TOOLS}]}, "tools[0].tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "no spaces", "tools": []}]}, "tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{**TOOLS[1], "name": ""}]}]},
            "tools[0].tools[0].name",
        ),
        ({"tools": SPACES, "tool_choice": {"type": "function", "name": "now"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.allowed_tools"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}}, "text.format"),
        ({"text": {"colour": 1}}, "text.colour"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(unharmed: Served, fields: dict[str, Any], param: str) -> None:
    error = unharmed.refused("/v1/responses", {"model": unharmed.model, "input": "hello", **fields})
    assert error["param"] == param
    assert error["message"]
