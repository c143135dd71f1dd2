"""`ollama`, unchanged, at `/api/…`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from clients.asked import LIMIT, QUESTION, Alarm, Ticket
from clients.conftest import MODEL

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
BRIEF: Any = {"num_predict": 8, "temperature": 0, "seed": 0}
TOOL: Any = {
    "type": "function",
    "function": {"name": "Alarm", "description": Alarm.__doc__, "parameters": Alarm.model_json_schema()},
}


@pytest.fixture
def client(url: str) -> Iterator[ollama.Client]:
    made = ollama.Client(host=url.removesuffix("/v1"), timeout=120)
    yield made
    made._client.close()


@pytest.mark.shows("ollama", "chat, whole and streamed")
def test_a_chat(client: ollama.Client) -> None:
    whole = client.chat(MODEL, MESSAGES, options=BRIEF)
    parts = list(client.chat(MODEL, MESSAGES, options=BRIEF, stream=True))
    assert whole.message.content
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (whole.done_reason, parts[-1].done_reason) == ("length", "length")
    assert whole.eval_count == parts[-1].eval_count == 8
    assert (whole.prompt_eval_count or 0) > 0


@pytest.mark.shows("ollama", "structured output")
def test_a_schema(client: ollama.Client) -> None:
    options: Any = {**BRIEF, "num_predict": LIMIT}
    answer = client.chat(MODEL, MESSAGES, format=Ticket.model_json_schema(), options=options)
    assert isinstance(Ticket.model_validate_json(answer.message.content or ""), Ticket)


@pytest.mark.shows("ollama", "tools are offered, and results of calls are read")
def test_tools(client: ollama.Client) -> None:
    """The API has no way to ask for a call, and a model as small makes none by itself."""
    offered = client.chat(MODEL, MESSAGES, tools=[TOOL], options=BRIEF)
    plain = client.chat(MODEL, MESSAGES, options=BRIEF)
    assert (offered.prompt_eval_count or 0) > (plain.prompt_eval_count or 0)
    call = {"function": {"name": "Alarm", "arguments": {"floor": 3, "loud": True}}}
    said: Any = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "Alarm", "content": "It rings."},
    ]
    answered = client.chat(MODEL, said, tools=[TOOL], options=BRIEF)
    assert (answered.prompt_eval_count or 0) > (offered.prompt_eval_count or 0)


@pytest.mark.shows("ollama", "generate, whole and streamed")
def test_a_prompt(client: ollama.Client) -> None:
    whole = client.generate(MODEL, QUESTION, options=BRIEF)
    parts = list(client.generate(MODEL, QUESTION, options=BRIEF, stream=True))
    assert whole.response
    assert "".join(part.response for part in parts) == whole.response


@pytest.mark.shows("ollama", "list and show")
def test_the_models(client: ollama.Client) -> None:
    assert MODEL in [model.model for model in client.list().models]
    shown = client.show(MODEL)
    assert "completion" in (shown.capabilities or [])
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("nobody")
    assert caught.value.status_code == 404


@pytest.mark.shows("ollama", "embed")
def test_vectors(client: ollama.Client) -> None:
    one = client.embed(MODEL, "A small boat.")
    two = client.embed(MODEL, ["A small boat.", "The sea."])
    assert len(one.embeddings) == 1
    assert len(two.embeddings) == 2
    assert list(two.embeddings[0]) == pytest.approx(list(one.embeddings[0]), abs=1e-2)
