"""`pydantic-ai` at `/v1/responses`, and the streams of its model for chats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from clients.asked import LIMIT, QUESTION, Ticket
from clients.conftest import MODEL

MODELS: dict[str, Any] = {"chat": OpenAIChatModel, "Responses": OpenAIResponsesModel}


@pytest.fixture
async def provider(url: str) -> AsyncIterator[OpenAIProvider]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield OpenAIProvider(openai_client=client)


@pytest.mark.shows("pydantic-ai", "text, whole and streamed, by the chat and the Responses model")
@pytest.mark.parametrize("kind", MODELS)
async def test_text(provider: OpenAIProvider, kind: str) -> None:
    agent = Agent(MODELS[kind](MODEL, provider=provider), model_settings=ModelSettings(max_tokens=8, temperature=0))
    whole = (await agent.run(QUESTION)).output
    async with agent.run_stream(QUESTION) as ran:
        pieces = [piece async for piece in ran.stream_text(delta=True, debounce_by=None)]
    assert whole
    assert "".join(pieces) == whole


@pytest.mark.shows("pydantic-ai", "structured output by the Responses model: by schema, and by a tool")
@pytest.mark.parametrize("output", [NativeOutput, ToolOutput])
async def test_a_schema(provider: OpenAIProvider, output: Any) -> None:
    model = OpenAIResponsesModel(MODEL, provider=provider)
    agent = Agent(model, output_type=output(Ticket), retries=0)
    settings = ModelSettings(max_tokens=LIMIT, temperature=0, parallel_tool_calls=False)
    assert isinstance((await agent.run(QUESTION, model_settings=settings)).output, Ticket)
