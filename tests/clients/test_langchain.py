"""`langchain-openai`: chats and streams, by either API."""

from __future__ import annotations

import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from clients.asked import QUESTION
from clients.conftest import MODEL


@pytest.mark.shows("langchain-openai", "chats and streams, by /v1/chat/completions and /v1/responses")
@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_text(url: str, responses: bool) -> None:
    chat = ChatOpenAI(
        base_url=url, api_key=SecretStr("none"), model=MODEL, max_completion_tokens=8, max_retries=0, temperature=0,
        use_responses_api=responses,
    )  # fmt: skip
    whole = chat.invoke(QUESTION)
    pieces = [piece.text for piece in chat.stream(QUESTION)]
    assert whole.text
    assert "".join(pieces) == whole.text
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] <= 8
