"""`openai` at `/v1/responses`: whole, streamed, with tools, with a schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from clients.asked import LIMIT, QUESTION, Alarm, Ticket
from clients.conftest import MODEL

TOOLS: Any = [openai.pydantic_function_tool(kind)["function"] | {"type": "function"} for kind in (Alarm, Ticket)]
MODELS: dict[str, type[Alarm | Ticket]] = {"Alarm": Alarm, "Ticket": Ticket}
NAMED: Any = {"type": "function", "name": "Alarm"}
ANSWER: dict[str, Any] = {"model": MODEL, "input": QUESTION, "max_output_tokens": LIMIT, "temperature": 0}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.mark.shows("openai", "responses, whole and streamed")
def test_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ANSWER | {"max_output_tokens": 8}, instructions="Be brief.")
    with client.responses.stream(**ANSWER | {"max_output_tokens": 8}, instructions="Be brief.") as stream:
        events: list[Any] = list(stream)
    final = events[-1].response  # its own `get_final_response` has none of an answer that was cut off
    pieces = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert whole.usage is not None
    assert whole.output_text
    assert pieces == final.output_text == whole.output_text
    assert final.status == whole.status
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.shows("openai", "responses: tools, and their results")
def test_a_tool_loop(client: openai.OpenAI) -> None:
    first = client.responses.create(**ANSWER, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False)
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "Alarm", "completed")
    Alarm.model_validate_json(call.arguments)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It rings."}
    said: Any = [{"role": "user", "content": QUESTION}, call, result]
    second = client.responses.create(
        **ANSWER | {"input": said, "max_output_tokens": 8}, tools=TOOLS, tool_choice="none"
    )
    assert [item.type for item in second.output] == ["message"]


@pytest.mark.shows("openai", "responses: tools, streamed")
def test_a_call_in_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(**ANSWER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False) as stream:
        events = list(stream)
        (call,) = stream.get_final_response().output
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert call.type == "function_call"
    assert pieces == call.arguments
    assert call.parsed_arguments is not None
    MODELS[call.name].model_validate_json(call.arguments)


@pytest.mark.shows("openai", "responses: structured output")
def test_a_schema(client: openai.OpenAI) -> None:
    assert isinstance(client.responses.parse(**ANSWER, text_format=Ticket).output_parsed, Ticket)
    with client.responses.stream(**ANSWER, text_format=Ticket) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Ticket)


@pytest.mark.shows("openai", "responses: cut off, and refused by name")
def test_endings(client: openai.OpenAI) -> None:
    cut = client.responses.create(**ANSWER | {"max_output_tokens": 2})
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**ANSWER, previous_response_id="resp_1")
