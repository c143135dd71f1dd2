"""The commands on the small real model, in the store that the machine has."""

from __future__ import annotations

import pytest
from cli_rigs import run_here, type_in

from drivetrain import assembly

pytestmark = pytest.mark.slow

GREEDY = ("--temperature", "0", "--max-tokens", "20")
QUESTION = "What is the capital of France?"


def test_generate_and_inspect(capsys: pytest.CaptureFixture[str], smollm2: str) -> None:
    ask = ("generate", smollm2, "--engine", "transformers", "--message", QUESTION, *GREEDY)
    streamed = run_here(capsys, *ask)
    document = run_here(capsys, *ask, "--json").json
    (choice,) = document["choices"]
    assert "Paris" in streamed.out
    assert streamed.out == choice["text"] + "\n"
    assert choice["finish_reason"] in {"stop", "length"}
    assert document["usage"]["completion_tokens"] == len(choice["token_ids"])

    found = run_here(capsys, "inspect", smollm2, "--message", QUESTION, "--json").json
    assert (found["family"], found["family_is_fallback"]) == ("template", False)
    assert found["prompt"]["token_ids"] == document["prompt_token_ids"]
    assert found["sampling"]["temperature"] == {"value": 0.2, "origin": "catalogue"}
    assert found["sampling"]["top_p"] == {"value": 0.9, "origin": "catalogue"}
    assert found["sampling"]["top_k"]["origin"] == "neutral"


def test_the_first_answer_is_right(capsys: pytest.CaptureFixture[str], smollm2: str) -> None:
    answer = run_here(capsys, "generate", smollm2, QUESTION, *GREEDY)
    assert (answer.code, "Paris" in answer.out) == (0, True)


def test_chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, smollm2: str) -> None:
    type_in(monkeypatch, "Say hello.\n/undo\nSay hello.\n")
    outcome = run_here(capsys, "chat", smollm2, *GREEDY)
    first, second = outcome.out.splitlines()
    assert "hello" in first.lower()
    assert "hello" in second.lower()


def test_a_real_gguf_file_without_the_library(
    capsys: pytest.CaptureFixture[str], smollm2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly.EngineKind, "installed", False)
    monkeypatch.setattr("drivetrain.engines.llamacpp.describe.find_spec", lambda name: None)
    found = run_here(capsys, "inspect", smollm2, "--json").json
    assert (found["engine"], found["engine_ready"], found["family"]) == ("llamacpp", False, "template")
    assert found["install"] == "pip install '.[llamacpp]'"
    assert found["install"] in found["missing"][0]
    assert found["prompt"]["token_ids"] is None
    assert found["prompt"]["text"].endswith("<|im_start|>assistant\n")
    assert found["stop_tokens"] == {"0": "<|endoftext|>", "2": "<|im_end|>"}
