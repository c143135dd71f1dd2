"""`/v1/messages` over the bare wire: on each engine, and what a scripted model says, in the order of its docs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.text.byte_tokenizer import ByteTokenizer
from server.conftest import can
from server.serving import Served, fake, open_fake, says, serving, thoughtful
from server.sse import events

PATH = "/v1/messages"
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź \\"1\\" 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
CITY = {"city": 'Łódź "1" 🙂'}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def body(served: Served, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "How is the weather in Łódź?"}]
    return {"model": served.model, "messages": said, "max_tokens": 400, "temperature": 0, **fields}


def ask(served: Served, **fields: Any) -> dict[str, Any]:
    status, document = served.post(PATH, body(served, **fields))
    assert status == 200, document
    return document


def streamed(served: Served, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    status, headers, data = served.request("POST", PATH, body(served, stream=True, **fields))
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), data
    return events(data)


def joined(sent: list[tuple[str, dict[str, Any]]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The content and the end of a message, put together as the docs tell clients to."""
    blocks: list[dict[str, Any]] = []
    partial: dict[int, str] = {}
    ended: dict[str, Any] = {}
    for name, data in sent:
        if name == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append(dict(data["content_block"]))
        elif name == "content_block_delta":
            delta = data["delta"]
            block = blocks[data["index"]]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                partial[data["index"]] = partial.get(data["index"], "") + delta["partial_json"]
        elif name == "message_delta":
            ended = data["delta"] | {"usage": data["usage"]}
    for index, text in partial.items():
        blocks[index]["input"] = json.loads(text)
    return blocks, ended


def refused(served: Served, fields: dict[str, Any], status: int = 400, path: str = PATH) -> dict[str, Any]:
    got, document = served.post(path, fields)
    assert got == status, document
    assert document["type"] == "error"
    assert document["request_id"]
    error: dict[str, Any] = document["error"]
    return error


def test_text_on_each_engine(served: Served) -> None:
    """Whole and streamed; the same text as from a chat with the same prompt."""
    whole = ask(served, max_tokens=8, system="Be brief.")
    blocks, ended = joined(streamed(served, max_tokens=8, system=[{"type": "text", "text": "Be brief."}]))
    messages: Any = [{"role": "system", "content": "Be brief."}, *body(served)["messages"]]
    chat = served.client.chat.completions.create(model=served.model, messages=messages, max_tokens=8, temperature=0)
    text = chat.choices[0].message.content
    assert [block["text"] for block in whole["content"]] == [block["text"] for block in blocks]
    assert "".join(block["text"] for block in blocks) == text
    assert chat.usage is not None
    assert sum(ended["usage"].values()) == chat.usage.total_tokens
    assert whole["stop_reason"] == ended["stop_reason"]
    assert (whole["stop_reason"] == "max_tokens") == (chat.choices[0].finish_reason == "length")


@pytest.mark.parametrize("ids_per_step", [1, 3, 50])
def test_calls_whole_and_streamed(ids_per_step: int) -> None:
    with says(CALLS, ids_per_step=ids_per_step) as served:
        whole = ask(served, tools=TOOLS)
        blocks, ended = joined(streamed(served, tools=TOOLS))
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in whole["content"][1:]] == [CITY, {}]
    assert whole["stop_reason"] == ended["stop_reason"] == "tool_use"
    plain = [{key: value for key, value in block.items() if key != "id"} for block in whole["content"]]
    assert [{key: value for key, value in block.items() if key != "id"} for block in blocks] == plain


def test_the_order_of_events() -> None:
    with says(CALLS, ids_per_step=4) as served:
        names = [name for name, _ in streamed(served, tools=TOOLS)]
    once = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert once == ["message_start", *block * 3, "message_delta", "message_stop"]


def test_the_round_trip_of_a_call() -> None:
    with says(CALLS) as served:
        first = ask(served, tools=TOOLS)
        said = [*body(served)["messages"], {"role": "assistant", "content": first["content"]}]
        uses = [block["id"] for block in first["content"][1:]]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": uses[0], "content": "sunny"},
            {
                "type": "tool_result",
                "tool_use_id": uses[1],
                "content": [{"type": "text", "text": "?"}],
                "is_error": True,
            },
        ]
        asked = [*results, {"type": "text", "text": "And tomorrow?"}]
        again = ask(served, tools=TOOLS, messages=[*said, {"role": "user", "content": asked}])
        assert again["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        wrong = [*said, {"role": "user", "content": [{**results[0], "tool_use_id": "call_0"}]}]
        error = refused(served, body(served, tools=TOOLS, messages=wrong))
    assert error["param"] == "messages[2].content[0].tool_use_id"


def test_thinking_is_a_block_of_its_own() -> None:
    with serving(thoughtful(text="<think>\nEasy.\n</think>\n\nParis", ids_per_step=3)) as served:
        whole = ask(served, thinking={"type": "adaptive"})
        blocks, _ = joined(streamed(served))
        said = [*body(served)["messages"], {"role": "assistant", "content": whole["content"]}]
        ask(served, messages=[*said, {"role": "user", "content": "Why?"}])
    assert blocks == whole["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert (blocks[0]["thinking"], blocks[1]["text"]) == ("Easy.", "Paris")


@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_use"}),
        ({"type": "tool", "name": "now"}, {"tool_use"}),
    ],
)
def test_a_call_that_is_asked_for(served: Served, choice: dict[str, Any], kinds: set[str]) -> None:
    if not can(served, "response_format"):
        pytest.skip("this engine cannot be held to a call")
    tools = [{"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}]
    answer = ask(served, tools=tools, tool_choice=choice, max_tokens=100)
    assert {block["type"] for block in answer["content"]} == kinds
    assert answer["stop_reason"] == "tool_use"


def test_a_schema_on_each_engine(served: Served) -> None:
    if not can(served, "response_format"):
        pytest.skip("this engine honours no schema")
    schema = {
        "type": "object",
        "properties": {"old": {"type": "boolean"}},
        "required": ["old"],
        "additionalProperties": False,
    }
    answer = ask(served, output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=60)
    assert isinstance(json.loads(answer["content"][0]["text"])["old"], bool)


def test_a_stop_of_the_caller_is_told() -> None:
    with says("one two three four") as served:
        whole = ask(served, stop_sequences=["three"])
        _, ended = joined(streamed(served, stop_sequences=["three"]))
        cut = ask(served, max_tokens=5)
    assert whole["content"][0]["text"] == "one two "
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "three")
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", "three")
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("max_tokens", None)


def test_tokens_are_counted_as_they_are_used(served: Served) -> None:
    asked = {
        key: value for key, value in body(served, tools=TOOLS, system="Be brief.").items() if key not in _NOT_COUNTED
    }
    if not can(served, "tools"):
        del asked["tools"]
    status, counted = served.post(f"{PATH}/count_tokens", asked)
    assert status == 200, counted
    usage = ask(served, **{**asked, "max_tokens": 1})["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


class SwitchedTokenizer(ByteTokenizer):
    """Its chat template opens the reasoning where it is asked to."""

    chat_template = f"{ByteTokenizer.chat_template}{{% if enable_thinking %}}<think>{{% endif %}}"


def test_counting_renders_what_is_answered() -> None:
    """Thinking and the variables of the template make the prompt longer."""
    with serving(open_fake(FakeEngine(Script(text="Fine."), tokenizer=SwitchedTokenizer()))) as served:
        plain = body(served)
        lengths = []
        for fields in ({}, {"thinking": {"type": "enabled"}}, {"chat_template_kwargs": {"enable_thinking": True}}):
            asked = {**plain, **fields}
            usage = ask(served, **asked)["usage"]
            counted = {name: value for name, value in asked.items() if name not in _NOT_COUNTED}
            status, document = served.post(f"{PATH}/count_tokens", counted)
            assert (status, document) == (200, {"input_tokens": usage["input_tokens"]})
            lengths.append(document["input_tokens"])
        error = refused(served, {**counted, "chat_template_kwargs": {"mood": 1}}, path=f"{PATH}/count_tokens")
    assert lengths == [lengths[0], lengths[0] + 7, lengths[0] + 7]
    assert error["param"] == "chat_template_kwargs.mood"


def test_counting_has_the_limits_of_answers(unharmed: Served) -> None:
    said = [{"role": "user", "content": "x"}] * 1025
    tools = [{"name": f"f{i}", "input_schema": {}} for i in range(129)]
    for fields, param in (
        ({"messages": said}, "messages"),
        ({"tools": tools}, "tools"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
    ):
        plain = {"model": unharmed.model, "messages": said[:1]}
        assert refused(unharmed, {**plain, **fields}, path=f"{PATH}/count_tokens")["param"] == param


def test_what_a_coding_agent_sends_at_first() -> None:
    """A message of the system behind the user's, and fields that ask for nothing: none of it changes the prompt."""
    agents = {
        "context_management": {"edits": [{"type": _CLEARS, "keep": "all"}]},
        "speed": "standard",
        "tools": [{**tool, "defer_loading": False, "allowed_callers": ["direct"]} for tool in TOOLS],
        "max_tokens": 32_000,
    }
    user: dict[str, Any] = {"role": "user", "content": "How is it?"}
    among = {"role": "system", "content": [{"type": "text", "text": "Today is Friday."}]}
    with says("Fine.") as served:
        plain = ask(served, system="Be brief.\nToday is Friday.", messages=[user], tools=TOOLS)
        for messages in ([user, among], [among, user]):
            found = ask(served, system="Be brief.", messages=messages, **agents)
            assert (found["content"], found["usage"]) == (plain["content"], plain["usage"])
        asked = body(served, messages=[user, among], **agents)
        counted = {name: value for name, value in asked.items() if name not in _NOT_COUNTED}
        status, document = served.post(f"{PATH}/count_tokens", counted)
        assert (status, document["input_tokens"]) == (200, ask(served, **asked)["usage"]["input_tokens"])
        empty = [{"type": "text", "text": ""}]
        assert (
            ask(served, system=empty, messages=[among, user])["usage"] == ask(served, messages=[among, user])["usage"]
        )
        alone = ask(served, messages=[among, user])
        assert alone["usage"] == ask(served, system="Today is Friday.", messages=[user])["usage"]


def test_the_billing_line_of_an_agent_is_no_part_of_the_prompt() -> None:
    """Two turns of a chat share their beginning; what was left out is said, and a server can be told to keep it."""

    def system(line: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text} for text in (line, "Be brief.")]

    lines = ("x-anthropic-billing-header: cch=1;", "x-anthropic-billing-header: cch=23456; a=b;")
    with says("Fine.") as served:
        plain = ask(served, system="Be brief.")["usage"]
        for line in lines:
            status, headers, data = served.request("POST", PATH, body(served, system=system(line), receipt=True))
            found = json.loads(data)
            assert (status, found["usage"], headers["x-drivetrain-ignored"]) == (200, plain, "system[0]")
            assert found["receipt"]["ignored"] == ["system[0]"]
        others = [
            [{"type": "text", "text": f"{lines[0]}\nBe brief."}],
            system(lines[0])[::-1],
            system(f"Of {lines[0]}"),
        ]
        assert all(ask(served, system=one)["usage"]["input_tokens"] > plain["input_tokens"] for one in others)
    with serving(fake(text="Fine."), keep_billing_line=True) as served:
        kept = [ask(served, system=system(line))["usage"]["input_tokens"] for line in lines]
    assert kept[0] < kept[1]


def test_an_answer_gets_what_the_context_leaves() -> None:
    """Whole and streamed; a prompt that leaves nothing is refused in the words that clients look for."""
    with serving(open_fake(FakeEngine(Script(text="word ", repeat=True, context_length=300)))) as served:
        whole = ask(served, max_tokens=32_000)
        _, ended = joined(streamed(served, max_tokens=32_000))
        asked = ask(served, max_tokens=5)
        long = [{"role": "user", "content": "x" * 400}]
        error = refused(served, body(served, messages=long, max_tokens=32_000))
        kept = refused(served, body(served, max_tokens=299, overflow="error"))
    for told in (whole, ended):
        assert told["stop_reason"] == "model_context_window_exceeded"
        assert told["usage"]["input_tokens"] + told["usage"]["output_tokens"] == 300
    assert asked["stop_reason"] == "max_tokens"
    assert re.search(r"prompt is too long: \d+ tokens > 300", error["message"])
    assert re.search(r"exceed context limit: \d+ \+ 299 > 300", kept["message"])


def test_an_empty_system_text_is_none(unharmed: Served) -> None:
    plain = ask(unharmed, max_tokens=1)["usage"]
    assert ask(unharmed, max_tokens=1, system="")["usage"] == plain
    assert ask(unharmed, max_tokens=1, system=[])["usage"] == plain


def test_arguments_that_json_has_no_form_for() -> None:
    """Whole and streamed: the call keeps its name."""
    said = '<tool_call>\n{"name": "now", "arguments": {"a": 1e999}}\n</tool_call>'
    with says(said) as served:
        whole = ask(served, tools=TOOLS)
        names = [name for name, _ in streamed(served, tools=TOOLS)]
    (block,) = whole["content"]
    assert (block["name"], block["input"]) == ("now", {})
    assert names[-1] == "message_stop"


_NOT_COUNTED = {"max_tokens", "temperature"}


def test_a_receipt_comes_with_the_end() -> None:
    with says("Fine.") as served:
        whole = ask(served, receipt=True)
        sent = streamed(served, receipt=True)
        assert "receipt" not in ask(served)
    assert [name for name, data in sent if "receipt" in data] == ["message_stop"]
    assert sent[-1][1]["receipt"]["model"] == whole["receipt"]["model"]


def test_an_engine_that_fails_in_the_middle() -> None:
    with says("one two three four", fault=EngineFailed("it broke"), fault_at_step=5) as served:
        name, data = streamed(served)[-1]
    assert (name, data["error"]["type"], data["error"]["code"]) == ("error", "api_error", "engine_error")


def test_keys_and_errors_are_those_of_the_api() -> None:
    with serving(fake(text="Fine."), api_keys=("sesame",)) as served:
        missing, _, data = served.request("POST", PATH, body(served))
        wrong, _, _ = served.request("POST", PATH, body(served), {"x-api-key": "other"})
        right, _, _ = served.request("POST", PATH, body(served), {"x-api-key": "sesame"})
        both = {"x-api-key": "sesame", "authorization": "Bearer none"}
        assert served.request("POST", PATH, body(served), both)[0] == 200
        _, _, unknown = served.request("POST", PATH, body(served, model="nobody"), {"x-api-key": "sesame"})
        _, _, large = served.request("POST", PATH, b"x" * (33 * 2**20), {"x-api-key": "sesame"})
    assert (missing, wrong, right) == (401, 401, 200)
    assert json.loads(data)["error"]["type"] == "authentication_error"
    assert json.loads(unknown)["error"]["type"] == "not_found_error"
    assert json.loads(large)["error"]["type"] == "request_too_large"


_CLEARS = "clear_thinking_20251015"
_USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "critic", "content": "x"}]}, "messages[1].role"),
        ({"context_management": {"edits": [{"type": _CLEARS}]}}, "context_management.edits[0].keep"),
        ({"context_management": {"edits": [{"type": _CLEARS, "keep": 1}]}}, "context_management.edits[0].keep"),
        ({"context_management": {"edits": [{"type": "compact"}]}}, "context_management.edits[0].type"),
        ({"speed": "fast"}, "speed"),
        ({"tools": [{**TOOLS[1], "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOLS[1], "allowed_callers": ["code"]}]}, "tools[0].allowed_callers"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": ""}]}]},
            "messages[0].content[0].type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "no spaces", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"n": 2}, "n"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"temperature": -1}, "temperature"),
        ({"colour": 1}, "colour"),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}, "max_reasoning_tokens": 8}, "max_reasoning_tokens"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "output_config.effort"),
        ({"messages": [{"role": "assistant", "content": [_USE] * 129}]}, "messages[0].content[128]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(unharmed: Served, fields: dict[str, Any], param: str) -> None:
    error = refused(unharmed, body(unharmed, **fields))
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": PNG},
        {"type": "url", "url": "http://127.0.0.1/x.png"},
        {"type": "file", "file_id": "x"},
        {"type": "base64", "media_type": "text/plain", "data": "eA=="},
    ],
)
def test_a_picture_for_a_model_without_eyes(unharmed: Served, source: dict[str, Any]) -> None:
    said = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    assert refused(unharmed, body(unharmed, messages=said))["param"].startswith("messages")
