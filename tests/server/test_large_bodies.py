"""Large bodies, whatever shape they have: none of the work on their many values is done on the event loop.

What is counted is the calls of functions there, of Python or C: no clock, so a busy machine changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from server.serving import Served, fake, serving

MAX_CALLS = 20_000
"""The attacks here have at least twice as many values; a small request takes about a tenth of it."""

COMPLETION, CHAT, MESSAGES, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"


def said(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


IDS = [[1] * 1000] * 400
PARTS = 15_000

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "many lists of ids": (COMPLETION, {"prompt": IDS}),
    "few lists of ids": (COMPLETION, {"prompt": [[1] * 100_000] * 4, "max_tokens": 1}),
    "one list of ids": (COMPLETION, {"prompt": [1] * 400_000, "max_tokens": 1}),
    "stops in ids": (COMPLETION, {"prompt": "x", "stop_sequences": IDS}),
    "bad words": (COMPLETION, {"prompt": "x", "bad_words_ids": IDS}),
    "short bad words": (COMPLETION, {"prompt": "x", "bad_words_ids": [[1]] * 60_000}),
    "stop ids": (COMPLETION, {"prompt": "x", "stop_token_ids": [1] * 900_000}),
    "stops": (COMPLETION, {"prompt": "x", "stop": ["x"] * 240_000}),
    "bias": (COMPLETION, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(60_000)}}),
    "prompts": (COMPLETION, {"prompt": ["x"] * 240_000}),
    "messages": (CHAT, {"messages": said("x") * PARTS}),
    "parts": (CHAT, {"messages": said([{"type": "text", "text": "x"}] * PARTS)}),
    "tools": (CHAT, {"messages": said("x"), "tools": [{"type": "function", "function": {"name": "a"}}] * 7500}),
    "an enum": (CHAT, {"messages": said("x"), "json_schema": {"enum": [f"x{i}" for i in range(200_000)]}}),
    "choices": (CHAT, {"messages": said("x"), "structured_outputs": {"choice": [f"x{i}" for i in range(200_000)]}}),
    "lists for the template": (CHAT, {"messages": said("x"), "chat_template_kwargs": {"a": [[1] * 10] * 60_000}}),
    "items": (RESPONSES, {"input": said("x") * PARTS}),
    "parts of an item": (RESPONSES, {"input": said([{"type": "input_text", "text": "x"}] * PARTS)}),
    "blocks": (MESSAGES, {"messages": said([{"type": "text", "text": "x"}] * PARTS), "max_tokens": 1}),
    "blocks of the system": (
        MESSAGES,
        {"messages": said("x"), "system": [{"type": "text", "text": "x"}] * PARTS, "max_tokens": 1},
    ),
    "texts to embed": ("/v1/embeddings", {"input": ["x"] * 240_000}),
    "ids to embed": ("/v1/embeddings", {"input": [[1] * 100_000] * 4}),
    "documents": ("/v1/rerank", {"query": "x", "documents": ["x"] * 240_000}),
    "documents as objects": ("/v1/rerank", {"query": "x", "documents": [{"text": "x"}] * PARTS}),
    "pairs": ("/v1/score", {"text_1": ["x"] * 120_000, "text_2": ["x"] * 120_000}),
    "pictures": ("/api/generate", {"prompt": "x", "images": ["eA=="] * 200_000}),
    "pictures of a message": ("/api/chat", {"messages": [{"role": "user", "images": ["eA=="] * 200_000}]}),
    "options": ("/api/generate", {"prompt": "x", "options": {"stop": ["x"] * 200_000}}),
    "ids to spell": ("/detokenize", {"tokens": [1] * 400_000}),
    "messages to count": ("/tokenize", {"messages": said("x") * PARTS}),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(fake(context_length=2_000_000)) as made:
        yield made


class Calls:
    """Counts the calls on the thread that it is set on."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, frame: object, event: str, what: object) -> None:
        self.count += event.endswith("call")

    async def begin(self) -> None:
        sys.setprofile(self.note)

    async def end(self) -> None:
        sys.setprofile(None)


def calls_on_the_loop(server: Served, path: str, body: dict[str, Any]) -> tuple[int, int]:
    """And the status."""
    calls = Calls()
    server.on_loop(calls.begin())
    try:
        status = server.request("POST", path, body)[0]
    finally:
        server.on_loop(calls.end())
    return calls.count, status


@pytest.mark.parametrize("name", SHAPES)
def test_a_large_body_is_not_walked_on_the_loop(server: Served, name: str) -> None:
    path, fields = SHAPES[name]
    count, status = calls_on_the_loop(server, path, {"model": "fake", **fields})
    assert status in {200, 400}
    assert count < MAX_CALLS


def test_calls_on_the_loop_are_counted(server: Served) -> None:
    """A body of just less than is parsed on a thread has its share there."""
    body = {"model": "fake", "prompt": "x", "stop": ["x"] * 12_000}
    count, status = calls_on_the_loop(server, COMPLETION, body)
    assert status == 400
    assert count > 12_000
