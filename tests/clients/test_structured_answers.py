"""A structured answer by each way that a client has for one, but for those by tools (`test_forced_calls.py`)."""

from __future__ import annotations

from collections.abc import Iterator

import instructor
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from clients.asked import LIMIT, QUESTION, Ticket
from clients.conftest import MODEL

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.mark.shows("openai", "chat: structured output, whole and streamed")
@pytest.mark.parametrize("seed", range(3))
def test_openai_parse(client: openai.OpenAI, seed: int) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=seed, response_format=Ticket
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Ticket)
    assert answer.choices[0].message.refusal is None


@pytest.mark.shows("openai", "chat: structured output, whole and streamed")
def test_openai_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, max_completion_tokens=LIMIT, seed=0, response_format=Ticket
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    pieces = "".join(event.delta for event in events if event.type == "content.delta")
    assert pieces == final.message.content
    assert isinstance(final.message.parsed, Ticket)
    assert final.finish_reason == "stop"
    done = [event.parsed for event in events if event.type == "content.done"]
    assert done == [final.message.parsed]


def test_openai_cut_by_the_limit(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(model=MODEL, messages=MESSAGES, max_completion_tokens=3, response_format=Ticket)
    assert caught.value.completion.usage is not None
    assert caught.value.completion.usage.completion_tokens == 3


@pytest.mark.shows("instructor", "JSON_SCHEMA, whole and as partial answers")
def test_instructor(client: openai.OpenAI) -> None:
    ticket, raw = instructor.from_openai(
        client, mode=instructor.Mode.JSON_SCHEMA
    ).chat.completions.create_with_completion(
        model=MODEL, messages=MESSAGES, max_tokens=LIMIT, response_model=Ticket, max_retries=0
    )
    assert isinstance(ticket, Ticket)
    assert raw.choices[0].finish_reason == "stop"


@pytest.mark.shows("instructor", "JSON_SCHEMA, whole and as partial answers")
def test_instructor_streams_partial_answers(client: openai.OpenAI) -> None:
    partial = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        model=MODEL, messages=MESSAGES, max_tokens=LIMIT, response_model=Ticket, max_retries=0
    )
    seen = list(partial)
    assert len(seen) > 1
    assert isinstance(Ticket.model_validate(seen[-1].model_dump()), Ticket)


@pytest.mark.shows("pydantic-ai", "structured output by the chat model: by schema, and by a tool")
async def test_pydantic_ai(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, output_type=NativeOutput(Ticket), retries=0)
        ran = await agent.run(QUESTION, model_settings=ModelSettings(max_tokens=LIMIT))
    assert isinstance(ran.output, Ticket)


@pytest.mark.shows("langchain-openai", "structured output, whole and streamed")
@pytest.mark.parametrize("streamed", [False, True])
def test_langchain(url: str, streamed: bool) -> None:
    chat = ChatOpenAI(
        base_url=url, api_key=SecretStr("none"), model=MODEL, max_completion_tokens=LIMIT, max_retries=0,
        temperature=1, seed=1, streaming=streamed,
    )  # fmt: skip
    structured = chat.with_structured_output(Ticket, method="json_schema", include_raw=True)
    answer = structured.invoke(QUESTION)
    assert isinstance(answer, dict)
    assert answer["parsing_error"] is None
    assert isinstance(answer["parsed"], Ticket)
    assert answer["raw"].response_metadata["finish_reason"] == "stop"
