"""A forced tool call by each way that a client has for one, and the structured answers that clients make of calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import instructor
import openai
import pytest
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import SecretStr
from pydantic_ai import Agent, ModelRequest, ToolDefinition, ToolOutput, UserPromptPart
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from clients.asked import LIMIT, QUESTION, Alarm, Ticket
from clients.conftest import MODEL

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
NAMED: Any = {"type": "function", "function": {"name": "Alarm"}}
TOOLS: Any = [openai.pydantic_function_tool(Alarm), openai.pydantic_function_tool(Ticket)]
MODELS: dict[str, type[Alarm | Ticket]] = {"Alarm": Alarm, "Ticket": Ticket}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


def arguments_of(call: Any) -> Alarm | Ticket:
    """Validated by the model of the function that is called; the id is there to answer to."""
    assert call.id
    assert call.type == "function"
    return MODELS[call.function.name].model_validate_json(call.function.arguments)


def without_strict(tools: Any) -> Any:
    return [{**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}} for tool in tools]


@pytest.mark.parametrize("tools", [TOOLS, without_strict(TOOLS)], ids=["strict", "not strict"])
@pytest.mark.shows("openai", "chat: tools, and their results")
@pytest.mark.parametrize("seed", range(2))
def test_openai_named(client: openai.OpenAI, tools: Any, seed: int) -> None:
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=seed, tools=tools, tool_choice=NAMED
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert isinstance(arguments_of((choice.message.tool_calls or [])[0]), Alarm)


@pytest.mark.shows("openai", "chat: tools, and their results")
def test_openai_required(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=0, tools=TOOLS, tool_choice="required",
        parallel_tool_calls=False,
    ).choices[0]  # fmt: skip
    (call,) = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    arguments_of(call)


@pytest.mark.shows("openai", "chat: tools, and their results")
def test_openai_calls_in_a_row(client: openai.OpenAI) -> None:
    """A small model may call until its limit: then the last call is not whole, and that is told."""
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=0, tools=TOOLS, tool_choice="required"
    ).choices[0]
    calls = choice.message.tool_calls or []
    assert choice.finish_reason in ("tool_calls", "length")
    assert len({call.id for call in calls}) == len(calls)
    whole = calls if choice.finish_reason == "tool_calls" else calls[:-1]
    assert whole
    for call in whole:
        arguments_of(call)


@pytest.mark.shows("openai", "chat: tools, and their results")
def test_openai_parsed_calls(client: openai.OpenAI) -> None:
    choice = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=0, tools=TOOLS, tool_choice=NAMED
    ).choices[0]
    assert isinstance((choice.message.tool_calls or [])[0].function.parsed_arguments, Alarm)


@pytest.mark.shows("openai", "chat: tools, streamed")
@pytest.mark.parametrize("tool_choice", [NAMED, "required"], ids=["named", "required"])
def test_openai_stream(client: openai.OpenAI, tool_choice: Any) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=0, tools=TOOLS, tool_choice=tool_choice,
        parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        events = list(stream)
        choice = stream.get_final_completion().choices[0]
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert calls
    for index, call in enumerate(calls):
        arguments = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        joined = "".join(event.arguments_delta for event in arguments if event.index == index)
        assert joined == call.function.arguments
        assert call.function.parsed_arguments == arguments_of(call)
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == [call.function.name for call in calls]


@pytest.mark.shows("openai", "chat: tools, and their results")
def test_openai_with_the_results_of_calls(client: openai.OpenAI) -> None:
    """The call and its result go back; the next answer is held to a schema again."""
    message = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=0, tools=TOOLS, tool_choice=NAMED
    ).choices[0].message  # fmt: skip
    calls = message.tool_calls or []
    told: Any = message.model_dump(exclude_none=True)
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": '{"rung": true}'} for call in calls]
    answer = client.chat.completions.parse(
        model=MODEL, messages=[*MESSAGES, told, *results], max_completion_tokens=LIMIT, seed=0, tools=TOOLS,
        tool_choice="none", response_format=Ticket,
    ).choices[0]  # fmt: skip
    assert answer.finish_reason == "stop"
    assert answer.message.tool_calls is None
    assert isinstance(answer.message.parsed, Ticket)


def test_openai_a_result_of_no_call(client: openai.OpenAI) -> None:
    result: Any = {"role": "tool", "tool_call_id": "call_of_nobody", "content": "1"}
    with pytest.raises(openai.BadRequestError, match="call_of_nobody"):
        client.chat.completions.create(model=MODEL, messages=[*MESSAGES, result], max_completion_tokens=LIMIT)


@pytest.mark.shows("instructor", "TOOLS")
def test_instructor(client: openai.OpenAI) -> None:
    ticket = instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=LIMIT, response_model=Ticket, max_retries=0
    )
    assert isinstance(ticket, Ticket)


@pytest.fixture
async def model(url: str) -> AsyncIterator[OpenAIChatModel]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=made))


@pytest.mark.shows("pydantic-ai", "structured output by the chat model: by schema, and by a tool")
async def test_pydantic_ai_output(model: OpenAIChatModel) -> None:
    agent = Agent(model, output_type=ToolOutput(Ticket), retries=0)
    ran = await agent.run(QUESTION, model_settings=ModelSettings(max_tokens=LIMIT))
    assert isinstance(ran.output, Ticket)


@pytest.mark.shows("pydantic-ai", "tools")
async def test_pydantic_ai_tool(model: OpenAIChatModel) -> None:
    """One request to the model: an agent that is forced to call in each step would never end."""
    tool = ToolDefinition(name="Alarm", parameters_json_schema=Alarm.model_json_schema(), description="Raise an alarm.")
    answer = await model_request(
        model,
        [ModelRequest(parts=[UserPromptPart(QUESTION)])],
        model_settings=ModelSettings(max_tokens=LIMIT, tool_choice=["Alarm"], parallel_tool_calls=False),
        model_request_parameters=ModelRequestParameters(function_tools=[tool], allow_text_output=False),
    )
    calls = [part for part in answer.parts if isinstance(part, ToolCallPart)]
    assert calls
    assert answer.finish_reason == "tool_call"
    for call in calls:
        assert call.tool_name == "Alarm"
        Alarm.model_validate(call.args_as_dict())


def langchain(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url, api_key=SecretStr("none"), model=MODEL, max_completion_tokens=LIMIT, max_retries=0, seed=0, **more
    )


@pytest.mark.shows("langchain-openai", "structured output, whole and streamed")
@pytest.mark.parametrize("streamed", [False, True])
def test_langchain_output(url: str, streamed: bool) -> None:
    structured = langchain(url, streaming=streamed).with_structured_output(Ticket, method="function_calling")
    assert isinstance(structured.invoke(QUESTION), Ticket)


@pytest.mark.shows("langchain-openai", "tools")
@pytest.mark.parametrize("tool_choice", ["Alarm", "any"])
def test_langchain_bound_tools(url: str, tool_choice: str) -> None:
    message = (
        langchain(url).bind_tools([Alarm, Ticket], tool_choice=tool_choice, parallel_tool_calls=False).invoke(QUESTION)
    )
    assert isinstance(message, AIMessage)
    assert message.invalid_tool_calls == []
    assert message.tool_calls
    for call in message.tool_calls:
        assert call["id"]
        assert tool_choice in ("any", call["name"])
        MODELS[call["name"]].model_validate(call["args"])


def test_openai_cut_by_the_limit(client: openai.OpenAI) -> None:
    """What came of the call is told, and that it is not whole."""
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=4, seed=0, tools=TOOLS, tool_choice=NAMED
    ).choices[0]
    assert choice.finish_reason == "length"
    for call in choice.message.tool_calls or []:
        assert call.type == "function"
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.function.arguments)
