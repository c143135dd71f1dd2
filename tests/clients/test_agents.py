"""`openai-agents` with its default model, which is the one for `/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from agents.items import ToolCallItem, ToolCallOutputItem

from clients.asked import LIMIT, QUESTION, Alarm, Ticket
from clients.conftest import MODEL

set_tracing_disabled(True)  # it would send what it does to its makers
SHORT: Any = {"stop": ["."]}
"""An answer that runs into its limit is an error for an agent: it ends with its first sentence."""

GREEDY = ModelSettings(temperature=0, max_tokens=LIMIT, store=False)


@pytest.fixture
async def model(url: str) -> AsyncIterator[OpenAIResponsesModel]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield OpenAIResponsesModel(MODEL, client)


@pytest.mark.shows("openai-agents", "a tool loop on its Responses model")
async def test_a_tool_loop(model: OpenAIResponsesModel) -> None:
    """A call is forced in the first turn; the agent gives its result back, and the model is then free to answer."""
    rung: list[Alarm] = []

    @function_tool  # type: ignore[untyped-decorator]
    def ring(alarm: Alarm) -> str:
        """Raise an alarm."""
        rung.append(alarm)
        return "It rings."

    forced = ModelSettings(
        temperature=0, max_tokens=64, store=False, extra_body=SHORT, tool_choice="required", parallel_tool_calls=False
    )
    agent = Agent(name="help desk", instructions="Be brief.", model=model, model_settings=forced, tools=[ring])
    ran = await Runner.run(agent, QUESTION, max_turns=4)
    assert rung
    kinds = [type(item) for item in ran.new_items]
    assert kinds[:2] == [ToolCallItem, ToolCallOutputItem]
    assert isinstance(ran.final_output, str)
    assert len(ran.raw_responses) > 1


@pytest.mark.shows("openai-agents", "streams")
async def test_a_stream(model: OpenAIResponsesModel) -> None:
    agent = Agent(
        name="help desk",
        model=model,
        model_settings=ModelSettings(temperature=0, max_tokens=64, store=False, extra_body=SHORT),
    )
    ran = Runner.run_streamed(agent, QUESTION)
    kinds = [event.data.type async for event in ran.stream_events() if event.type == "raw_response_event"]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds
    assert ran.final_output


@pytest.mark.shows("openai-agents", "structured output")
async def test_a_schema(model: OpenAIResponsesModel) -> None:
    agent = Agent(name="help desk", model=model, model_settings=GREEDY, output_type=Ticket)
    assert isinstance((await Runner.run(agent, QUESTION)).final_output, Ticket)
