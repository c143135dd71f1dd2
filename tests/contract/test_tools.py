"""Tools on every engine: a model without a form of its own is asked for the generic one, in its own prompt form."""

from __future__ import annotations

from typing import Any

import pytest

from contract.rigs import honours
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.events import Delta
from drivetrain.core.results import FinishReason
from drivetrain.text.answers.parser import MessageBuilder
from drivetrain.worker.worker import EngineWorker

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
USER: dict[str, Any] = {"role": "user", "content": "What is 1 + 1?"}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
CHAT: dict[str, Any] = {"messages": [USER], "tools": [TOOL], "temperature": 0, "max_tokens": 20}


async def test_the_prompt_tells_of_the_tools(worker: EngineWorker) -> None:
    """They make it longer, and `none` does not."""
    plain = (await worker.generate(**{**CHAT, "tools": []})).usage.prompt_tokens
    told = (await worker.generate(**CHAT)).usage.prompt_tokens
    untold = (await worker.generate(**CHAT, tool_choice="none")).usage.prompt_tokens
    if worker.capabilities.tokens:
        assert untold == plain < told


async def test_a_model_that_calls_nothing_says_its_text(worker: EngineWorker) -> None:
    result = await worker.generate(**CHAT)
    (choice,) = result.choices
    assert choice.message is not None
    assert (choice.message.content or "", choice.message.tool_calls) == (choice.text, ())
    assert choice.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}
    builder = MessageBuilder()
    async for event in worker.stream(**CHAT):
        if isinstance(event, Delta):
            for part in event.parts or ():
                builder.add(part)
    assert builder.message().content == choice.message.content


async def test_results_go_back(worker: EngineWorker) -> None:
    result = await worker.generate(**{**CHAT, "messages": [USER, CALLED, RESULT]})
    assert result.usage.completion_tokens >= 1
    without = await worker.generate(messages=[USER, CALLED, RESULT], temperature=0, max_tokens=4)
    assert without.choices[0].message is None


async def test_a_result_of_no_call_is_refused(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(**{**CHAT, "messages": [USER, CALLED, {**RESULT, "tool_call_id": "call_2"}]})
    assert caught.value.param == "messages[2].tool_call_id"


@pytest.mark.parametrize(
    ("asks", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]}, "tools[0].function.strict"),
    ],
)
async def test_what_only_a_grammar_can_promise_is_refused(
    worker: EngineWorker, asks: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        await worker.generate(**{**CHAT, **asks})
    assert caught.value.param == param


async def test_a_constraint_does_not_go_with_tools(worker: EngineWorker) -> None:
    if not await honours(worker, "constraint"):
        return
    with pytest.raises(Unsupported) as caught:
        await worker.generate(**CHAT, constraint={"json": True})
    assert caught.value.param == "constraint"
    result = await worker.generate(**CHAT, tool_choice="none", constraint={"choice": ["two"]})
    assert (result.text, result.choices[0].message) == ("two", None)
