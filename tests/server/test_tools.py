"""Tools and reasoning over HTTP, through the official client: what a scripted model says, as the API has it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from server.serving import Served, says

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
ASKED: list[Any] = [{"role": "user", "content": "How is the weather in Łódź?"}]
CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Łódź \\"1\\" 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ARGUMENTS = '{"city": "Łódź \\"1\\" 🙂"}'


def ask(served: Served, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        **{"model": served.model, "messages": ASKED, "tools": TOOLS, "max_tokens": 400, "temperature": 0, **fields}
    )


def joined(stream: Any) -> tuple[str, list[dict[str, str]], str]:
    """Content, calls and finish reason, as a client puts chunks together."""
    content, finish = "", ""
    calls: dict[int, dict[str, str]] = {}
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    return content, [calls[i] for i in sorted(calls)], finish


@pytest.mark.parametrize("ids_per_step", [1, 2, 3, 7, 50])
def test_calls_whole_and_streamed(ids_per_step: int) -> None:
    with says(CALLS, ids_per_step=ids_per_step) as served:
        whole = ask(served).choices[0]
        content, calls, finish = joined(ask(served, stream=True))
    assert whole.finish_reason == finish == "tool_calls"
    assert whole.message.content == content == "Let me see."
    heard = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert heard == [("get_weather", ARGUMENTS), ("now", "{}")]
    assert heard == [(call["name"], call["arguments"]) for call in calls]
    ids = [call.id for call in whole.message.tool_calls] + [call["id"] for call in calls]
    assert len(set(ids)) == 4
    assert all(one.startswith("call_") for one in ids)
    assert json.loads(calls[0]["arguments"]) == {"city": 'Łódź "1" 🙂'}


def test_only_a_call_has_no_content() -> None:
    with says('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>') as served:
        message = ask(served).choices[0].message
    assert message.content is None
    assert [call.function.name for call in message.tool_calls] == ["now"]


def test_the_round_trip() -> None:
    """What was called goes back with its result; an id that nobody made is refused."""
    with says(CALLS) as served:
        message = ask(served).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
        again = ask(served, messages=[*ASKED, message.model_dump(), *results])
        assert again.usage.prompt_tokens > 0
        with pytest.raises(openai.BadRequestError) as caught:
            ask(served, messages=[*ASKED, message.model_dump(), {**results[0], "tool_call_id": "call_0"}])
    assert caught.value.body["param"] == "messages[2].tool_call_id"  # type: ignore[index]


def test_a_call_that_is_cut_off() -> None:
    """It keeps its name and what there is of its arguments, whole and streamed, and the answer says `length`."""
    with says(CALLS) as served:
        whole = ask(served, max_tokens=70).choices[0]
        content, calls, finish = joined(ask(served, max_tokens=70, stream=True))
    assert whole.finish_reason == finish == "length"
    (call,) = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == (calls[0]["name"], calls[0]["arguments"])
    assert ARGUMENTS.startswith(call.function.arguments)
    assert whole.message.content == content == "Let me see."


@pytest.mark.parametrize("fields", [{"tools": []}, {"tool_choice": "none"}])
def test_without_tools_nothing_is_a_call(fields: dict[str, Any]) -> None:
    with says(CALLS) as served:
        choice = ask(served, **fields).choices[0]
    assert choice.finish_reason == "stop"
    assert (choice.message.content, choice.message.tool_calls) == (CALLS, None)


def test_choices_are_read_apart() -> None:
    with says(CALLS) as served:
        choices = ask(served, n=2).choices
    assert [len(choice.message.tool_calls) for choice in choices] == [2, 2]
    assert choices[0].message.tool_calls[0].id != choices[1].message.tool_calls[0].id


def test_a_stop_inside_a_call() -> None:
    with says(CALLS) as served:
        choice = ask(served, stop=["Łódź"]).choices[0]
    assert choice.finish_reason == "stop"
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"city": "']


def test_metrics_count_the_reason() -> None:
    with says(CALLS) as served:
        ask(served)
        _, _, body = served.request("GET", "/metrics")
    counted = [line for line in body.decode().splitlines() if '"tool_calls"' in line and line.endswith(" 1.0")]
    assert counted
