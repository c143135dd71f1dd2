"""`llm`, the command, with our server in its `extra-openai-models.yaml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clients.asked import LIMIT, QUESTION, Ticket
from clients.conftest import MODEL

MODELS = """
- {{model_id: ours, model_name: {model}, api_base: "{url}", supports_schema: true, supports_tools: true}}
- {{model_id: ours-by-responses, model_name: {model}, api_base: "{url}", responses: true, supports_schema: true}}
"""


def llm(url: str, folder: Path, *arguments: str, model: str = "ours", tokens: int = 8) -> str:
    (folder / "extra-openai-models.yaml").write_text(MODELS.format(model=MODEL, url=url))
    asked = ["-m", model, "-o", "temperature", "0", "-o", "max_tokens", str(tokens), *arguments, QUESTION]
    ran = subprocess.run(
        [sys.executable, "-m", "llm", "prompt", *asked], capture_output=True, text=True, timeout=200,
        env={**os.environ, "LLM_USER_PATH": str(folder)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.shows("llm", "prompts, whole and streamed")
def test_a_prompt(url: str, tmp_path: Path) -> None:
    streamed = llm(url, tmp_path, "-s", "Be brief.")
    assert streamed
    assert llm(url, tmp_path, "-s", "Be brief.", "--no-stream") == streamed


@pytest.mark.shows("llm", "schemas")
def test_a_schema(url: str, tmp_path: Path) -> None:
    schema = json.dumps(Ticket.model_json_schema())
    Ticket.model_validate_json(llm(url, tmp_path, "--schema", schema, tokens=LIMIT))


@pytest.mark.shows("llm", "tools are offered")
def test_tools(url: str, tmp_path: Path) -> None:
    """It cannot force a call; a small model may answer at once."""
    ring = 'def ring(floor: int) -> str:\n    """Raise an alarm."""\n    return "It rings."'
    assert llm(url, tmp_path, "--functions", ring, "--chain-limit", "2", tokens=16)


@pytest.mark.shows("llm", "prompts by /v1/responses")
def test_responses(url: str, tmp_path: Path) -> None:
    assert llm(url, tmp_path, model="ours-by-responses")
