"""Tools on every engine: a model without a form of its own is asked for the generic one, in its own prompt form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema_rs
import pytest

from contract.rigs import honours
from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.events import Delta
from drivetrain.core.results import Choice, FinishReason
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
BRIEF: dict[str, Any] = {**CHAT, "max_tokens": 4}


async def test_the_prompt_tells_of_the_tools(worker: EngineWorker) -> None:
    """They make it longer, and `none` does not."""
    plain = (await worker.generate(**{**BRIEF, "tools": []})).usage.prompt_tokens
    told = (await worker.generate(**BRIEF)).usage.prompt_tokens
    untold = (await worker.generate(**BRIEF, tool_choice="none")).usage.prompt_tokens
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
    result = await worker.generate(**{**BRIEF, "messages": [USER, CALLED, RESULT]})
    assert result.usage.completion_tokens >= 1
    without = await worker.generate(messages=[USER, CALLED, RESULT], temperature=0, max_tokens=4)
    assert without.choices[0].message is None


async def test_a_result_of_no_call_is_refused(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await worker.generate(**{**CHAT, "messages": [USER, CALLED, {**RESULT, "tool_call_id": "call_2"}]})
    assert caught.value.param == "messages[2].tool_call_id"


ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, 30]}},
    "required": ["a"],
    "additionalProperties": False,
}
HELD: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": ARGUMENTS, "strict": True}}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
DEMANDS: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"tools": [HELD]}, "tools[0].function.strict"),
]


@pytest.mark.parametrize(("asks", "param"), DEMANDS)
async def test_what_only_a_grammar_can_promise(worker: EngineWorker, asks: dict[str, Any], param: str) -> None:
    if await honours(worker, "constraint"):
        result = await worker.generate(**{**BRIEF, **asks})
        assert result.usage.completion_tokens >= 1
        return
    with pytest.raises(Unsupported) as caught:
        await worker.generate(**{**CHAT, **asks})
    assert caught.value.param == param


def check_call(choice: Choice, names: set[str]) -> None:
    assert choice.finish_reason is FinishReason.TOOL_CALLS, choice
    assert choice.message is not None
    for call in choice.message.tool_calls:
        assert (call.flaw, call.name in names) == (None, True)
        if call.name == "add":
            assert jsonschema_rs.is_valid(ARGUMENTS, json.loads(call.arguments)), call.arguments


SAMPLED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "1?"}],
    "tools": [HELD, OTHER],
    "temperature": 1.0,
    "max_tokens": 70,
}


@pytest.mark.parametrize("seed", range(3))
async def test_a_named_tool_is_called_once(worker: EngineWorker, seed: int) -> None:
    if not await honours(worker, "constraint"):
        return
    choice_of_tool = {"type": "function", "function": {"name": "add"}}
    result = await worker.generate(**SAMPLED, seed=seed, tool_choice=choice_of_tool)
    check_call(result.choices[0], {"add"})
    assert result.choices[0].message is not None
    assert len(result.choices[0].message.tool_calls) == 1
    assert result.choices[0].message.content is None


async def test_required_whole_streamed_and_alone(worker: EngineWorker) -> None:
    if not await honours(worker, "constraint"):
        return
    asked = {**SAMPLED, "tool_choice": "required", "parallel_tool_calls": False, "seed": 4}
    result = await worker.generate(**asked)
    check_call(result.choices[0], {"add", "now"})
    builder = MessageBuilder()
    async for event in worker.stream(**asked):
        if isinstance(event, Delta):
            for part in event.parts or ():
                builder.add(part)
    (call,) = builder.message().tool_calls
    assert call.flaw is None
    assert call.id.startswith("call_")


async def test_choices_and_free_requests_beside_it(worker: EngineWorker) -> None:
    if not await honours(worker, "constraint") or not await honours(worker, "n"):
        return
    named = {"type": "function", "function": {"name": "add"}}
    free: dict[str, Any] = {"messages": [USER], "temperature": 0, "max_tokens": 12}
    alone = (await worker.generate(**free)).text
    several, said = await asyncio.gather(
        worker.generate(**SAMPLED, n=3, seed=1, tool_choice=named), worker.generate(**free)
    )
    for choice in several.choices:
        check_call(choice, {"add"})
    assert len({choice.message.tool_calls[0].id for choice in several.choices if choice.message}) == 3
    assert len(said.text) > 0
    assert (await worker.generate(**free)).text == alone


async def test_a_schema_that_cannot_be_honoured(worker: EngineWorker) -> None:
    """Strict: refused, with the tool's name. Not strict: any object."""
    if not await honours(worker, "constraint"):
        return
    schema = {"type": "object", "properties": {"a": {"not": {"type": "integer"}}}}
    named = {"type": "function", "function": {"name": "odd"}}
    for strict in (True, False):
        tool = {"type": "function", "function": {"name": "odd", "parameters": schema, "strict": strict}}
        asked = {**SAMPLED, "tools": [tool], "tool_choice": named, "seed": 2}
        if strict:
            with pytest.raises(InvalidRequest, match="odd") as caught:
                await worker.generate(**asked)
            assert (caught.value.param or "").startswith("tools")
        else:
            result = await worker.generate(**{**asked, "max_tokens": 30})
            assert result.choices[0].message is not None
            assert result.choices[0].message.tool_calls[0].name == "odd"


async def test_a_constraint_is_on_the_content(worker: EngineWorker) -> None:
    """Beside tools, the answer is calls or what the constraint allows."""
    if not await honours(worker, "constraint"):
        return
    for seed in range(3):
        asked = {**SAMPLED, "seed": seed, "tools": [HELD], "parallel_tool_calls": False}
        (choice,) = (await worker.generate(**asked, constraint={"choice": ["two", "2"]})).choices
        assert choice.message is not None
        if choice.message.tool_calls:
            check_call(choice, {"add"})
        else:
            assert choice.message.content in {"two", "2"}
    result = await worker.generate(**CHAT, tool_choice="none", constraint={"choice": ["two"]})
    assert (result.text, result.choices[0].message) == ("two", None)
