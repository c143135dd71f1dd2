"""The AI SDK, on Node.js: its providers for OpenAI, by `/v1/responses`, and for compatible servers, by chats."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import MODEL

FOLDER = Path(__file__).parent / "npm"
APIS = {"responses": "@ai-sdk/openai", "chat": "@ai-sdk/openai-compatible"}


def sdk(url: str, api: str, ability: str) -> Any:
    command = ["node", "ai_sdk.mjs", url, MODEL, api, ability]
    ran = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.shows("ai", "generateText and streamText, by @ai-sdk/openai and @ai-sdk/openai-compatible")
@pytest.mark.parametrize("api", APIS)
def test_text(url: str, api: str) -> None:
    whole = sdk(url, api, "text")
    assert whole["text"]
    assert whole["finishReason"] in ("stop", "length")
    assert 0 < whole["tokens"] <= 8
    assert sdk(url, api, "stream") == whole


@pytest.mark.shows("ai", "generateObject and streamObject, by both providers")
@pytest.mark.parametrize("api", APIS)
def test_an_object(url: str, api: str) -> None:
    made = sdk(url, api, "object")
    assert made["finishReason"] == "stop"
    assert set(made["object"]) == {"title", "priority", "open"}
    assert made["object"]["priority"] in ("low", "high")
    assert made["streamed"] == made["object"]


@pytest.mark.shows("ai", "a tool, called and answered, by both providers")
@pytest.mark.parametrize("api", APIS)
def test_a_tool(url: str, api: str) -> None:
    done = sdk(url, api, "tool")
    assert done["steps"][0] == "tool-calls"
    assert len(done["steps"]) == 2
    assert done["calls"]
    for call in done["calls"]:
        assert call["name"] == "alarm"
        assert call["input"]["floor"] in (1, 2, 3)
        assert isinstance(call["input"]["loud"], bool)
    assert set(done["results"]) == {"It rings."}
    assert isinstance(done["text"], str)
