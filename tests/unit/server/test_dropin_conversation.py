"""Prompt forms as FastChat's conversation templates. That FastChat renders them so is shown in tests/dropin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.server.dropin.conversation import PLAIN, Style, conversation
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker


async def template_of(family: str | None, **script: Any) -> dict[str, Any]:
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    async with EngineWorker(FakeEngine(Script(**script)), spec, Settings(family=family)) as worker:
        return await conversation(worker)


async def test_turns_between_marks() -> None:
    found = await template_of("qwen")
    assert found == {
        "name": "qwen",
        "system_template": found["system_template"],
        "system_message": "You are a helpful assistant.",
        "roles": found["roles"],
        "messages": [],
        "offset": 0,
        "sep_style": Style.NO_COLON_SINGLE,
        "sep": found["sep"],
        "sep2": found["sep"],
        "stop_str": None,
        "stop_token_ids": None,
    }
    user, assistant = found["roles"]
    start = found["system_template"].format(system_message="S") + user + "U" + found["sep"] + assistant
    assert start == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


async def test_the_models_own_chat_template() -> None:
    found = await template_of(None)
    assert (found["name"], found["system_message"]) == ("template", "")
    assert found["system_template"] == "<|im_start|>system\n{system_message}<|im_end|>\n"
    assert found["roles"] == ["<|im_start|>user\n", "<|im_start|>assistant\n"]
    assert found["sep"] == "<|im_end|>\n"


async def test_labels_with_one_separator_leave_out_an_empty_system_text() -> None:
    found = await template_of("plain")
    assert found["sep_style"] == Style.FALCON_CHAT
    assert (found["roles"], found["sep"]) == (["User", "Assistant"], "\n")
    assert found["stop_str"] == ["\nUser:"]


async def test_labels_with_two_separators() -> None:
    found = await template_of("vicuna")
    assert found["sep_style"] == Style.DEEPSEEK_CHAT
    assert (found["roles"], found["sep"], found["sep2"]) == (["USER", " ASSISTANT"], "", "</s>")
    assert found["system_template"] == "{system_message} "
    assert found["system_message"].startswith("A chat between a curious user")


async def test_a_system_text_inside_the_first_message() -> None:
    found = await template_of("llama2")
    assert found["sep_style"] == Style.LLAMA2
    assert found["system_template"] == "[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n"
    assert (found["roles"], found["sep"], found["sep2"]) == (["[INST]", "[/INST]"], " ", " </s><s>")


async def test_where_a_system_text_has_no_frame_that_fastchat_can_write() -> None:
    found = await template_of("gemma")
    assert found["system_template"] == "{system_message}"
    assert found["roles"] == ["<start_of_turn>user\n", "<start_of_turn>model\n"]


async def test_the_place_where_an_answer_begins_counts_before_how_one_is_repeated() -> None:
    found = await template_of("alpaca")
    assert found["roles"][1] == "\n\n### Response:"


async def test_an_engine_that_shows_no_ids() -> None:
    class Textual:
        metadata = type("M", (), {"family": "template", "stop": ("###",)})()

        async def tokenize(self, text: str | None = None, *, messages: Any = None, **_: Any) -> list[int]:
            from drivetrain.core.errors import Unsupported

            raise Unsupported("texts only")

    found = await conversation(Textual())  # type: ignore[arg-type] # no more than is asked
    assert found["roles"] == [PLAIN.user, PLAIN.assistant]
    assert found["stop_str"] == ["###"]


@pytest.mark.parametrize("family", ["deepseek-v3", "mistral", "phi3", "guanaco"])
async def test_nothing_of_the_trial_is_left(family: str) -> None:
    found = await template_of(family)
    assert "Zeppelin" not in str(found)
    assert found["system_template"].format(system_message="{x}").count("{x}") == 1
