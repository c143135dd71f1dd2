"""`anthropic`, unchanged, at `/v1/messages`; and the raw events, in the order that its documentation gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)

from clients.asked import LIMIT, QUESTION, Alarm, Ticket
from clients.conftest import MODEL, Scripted
from clients.wire import held_to, posted, streamed

PATH = "/v1/messages"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
TOOLS: Any = [
    {"name": kind.__name__, "description": kind.__doc__ or "", "input_schema": kind.model_json_schema()}
    for kind in (Alarm, Ticket)
]
MODELS: dict[str, type[Alarm | Ticket]] = {"Alarm": Alarm, "Ticket": Ticket}
NAMED: Any = {"type": "tool", "name": "Alarm", "disable_parallel_tool_use": True}
ONE: Any = {"type": "any", "disable_parallel_tool_use": True}
FORMAT: Any = {"format": {"type": "json_schema", "schema": Ticket.model_json_schema()}}
ASKED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": LIMIT}
GREEDY: dict[str, Any] = {"temperature": 0}
"""The client has no argument for it any more, and sends it all the same."""
ANSWER = {**ASKED, "extra_body": GREEDY}
EVENTS = {
    "message_start": RawMessageStartEvent,
    "content_block_start": RawContentBlockStartEvent,
    "content_block_delta": RawContentBlockDeltaEvent,
    "content_block_stop": RawContentBlockStopEvent,
    "message_delta": RawMessageDeltaEvent,
    "message_stop": RawMessageStopEvent,
}


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.mark.shows("anthropic", "messages")
def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ANSWER | {"max_tokens": 8}, system="Be brief.")
    assert message.content[0].type == "text"
    assert message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert 0 < message.usage.output_tokens <= 8


@pytest.mark.shows("anthropic", "streams")
def test_a_stream(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ANSWER | {"max_tokens": 8})
    with client.messages.stream(**ANSWER | {"max_tokens": 8}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.model_dump()["text"] for block in final.content] == [text]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


@pytest.mark.shows("anthropic", "tools: forced, and answered with a result")
def test_a_tool_loop(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**ANSWER, tools=TOOLS, tool_choice=NAMED)
    assert first.stop_reason == "tool_use"
    calls = [block for block in first.content if block.type == "tool_use"]
    assert calls
    for call in calls:
        assert call.name == "Alarm"
        Alarm.model_validate(call.input)
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "It rings."} for call in calls]
    said: Any = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = client.messages.create(
        **ANSWER | {"messages": said, "max_tokens": 8}, tools=TOOLS, tool_choice={"type": "none"}
    )
    assert [block.type for block in second.content] == ["text"]


@pytest.mark.shows("anthropic", "tools, streamed")
def test_a_call_in_a_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**ANSWER, tools=TOOLS, tool_choice=ONE) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    (call,) = final.content
    assert call.type == "tool_use"
    MODELS[call.name].model_validate(call.input)
    assert json.loads("".join(pieces)) == call.input


@pytest.mark.shows("anthropic", "structured output")
def test_a_schema(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ANSWER, output_config=FORMAT)
    assert message.stop_reason == "end_turn"
    assert message.content[0].type == "text"
    Ticket.model_validate_json(message.content[0].text)


@pytest.mark.shows("anthropic", "count_tokens")
def test_counted_tokens(client: anthropic.Anthropic) -> None:
    """The count is that of the prompt, with its tools."""
    for tools in ({}, {"tools": TOOLS}):
        counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES, **tools)
        usage = client.messages.create(**ANSWER | {"max_tokens": 1}, **tools).usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.shows("anthropic", "errors")
def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="top_p"):
        client.messages.create(**ASKED, extra_body={"top_p": 7})
    with pytest.raises(anthropic.NotFoundError, match="nobody"):
        client.messages.create(**ANSWER | {"model": "nobody"})


def check_stream(sent: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """The blocks' types. message_start; each block's start, deltas and stop in turn; message_delta, message_stop."""
    for name, data in sent:
        held_to(EVENTS[name], data)
    names = [name for name, _ in sent]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert sent[0][1]["message"]["content"] == []
    blocks: list[str] = []
    is_open = False
    for name, data in sent[1:-2]:
        if name == "content_block_start":
            assert not is_open
            is_open = True
            blocks.append(data["content_block"]["type"])
        else:
            assert is_open
            assert name in ("content_block_delta", "content_block_stop")
            is_open = name == "content_block_delta"
        assert data["index"] == len(blocks) - 1
    assert not is_open
    return blocks


STREAMED: dict[str, dict[str, Any]] = {
    "text": {"max_tokens": 8},
    "a tool": {"tools": TOOLS, "tool_choice": NAMED},
    "one tool": {"tools": TOOLS, "tool_choice": ONE},
    "cut off": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 6},
    "structured": {"output_config": FORMAT},
    "a stop": {"stop_sequences": ["e"], "max_tokens": 40},
}


@pytest.mark.shows("anthropic", "the documented order of raw events, and no field that its types do not have")
@pytest.mark.parametrize("case", STREAMED)
def test_raw_events(url: str, case: str) -> None:
    base = url.removesuffix("/v1")
    body = {**ASKED, **GREEDY, **STREAMED[case]}
    whole = json.loads(posted(base, PATH, **body))
    held_to(Message, whole)
    sent = streamed(base, PATH, **body)
    assert check_stream(sent) == [block["type"] for block in whole["content"]]
    delta = sent[-2][1]["delta"]
    assert delta["stop_reason"] == whole["stop_reason"]
    assert delta["stop_sequence"] == whole["stop_sequence"]


def test_raw_events_of_a_model_that_reasons(scripted: Scripted) -> None:
    base, model = scripted["reasons"]
    body = {**ASKED, "model": model, "tools": TOOLS}
    held_to(Message, json.loads(posted(base, PATH, **body)))
    assert check_stream(streamed(base, PATH, **body)) == ["thinking", "text", "tool_use"]


def test_a_failure_ends_the_stream_with_an_error(scripted: Scripted) -> None:
    base, model = scripted["fails"]
    sent = streamed(base, PATH, **{**ASKED, "model": model})
    assert sent[0][0] == "message_start"
    assert sent[-1][0] == "error"
    assert sent[-1][1]["error"]["type"] == "api_error"
