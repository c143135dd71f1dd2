"""Our prompt forms as FastChat itself renders them from the templates that it gets of us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.families import registry
from drivetrain.server.dropin.conversation import conversation
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from dropin.processes import FASTCHAT, run_theirs

Chat = list[tuple[str, str]]

ONE: Chat = [("user", "Hi {you}")]
TWO: Chat = [*ONE, ("assistant", "Yes?"), ("user", "More")]
SYSTEM: Chat = [("system", "Be {brief}."), *ONE]
SYSTEM_TWO: Chat = [("system", "Be {brief}."), *TWO]
ALL = (ONE, TWO, SYSTEM, SYSTEM_TWO)

WRITES_AN_EMPTY_SYSTEM_TEXT = {"chatml", "deepseek", "deepseek-vl2", "llama3", "phi3", "zephyr"}
"""With a place for a system text and none of its own: there FastChat always writes the place."""
BEGINS_AN_ANSWER_OTHERWISE = {"alpaca", "guanaco-alpaca"}
SYSTEM_TEXT_IN_THE_FIRST_TURN = {"gemma"}


def exact(family: str) -> tuple[Chat, ...]:
    """The chats that FastChat renders as we do, token for token."""
    if family in WRITES_AN_EMPTY_SYSTEM_TEXT:
        return (SYSTEM, SYSTEM_TWO)
    if family in BEGINS_AN_ANSWER_OTHERWISE:
        return (ONE, SYSTEM)
    return (ONE, TWO) if family in SYSTEM_TEXT_IN_THE_FIRST_TURN else ALL


@pytest.mark.parametrize("family", registry.names())
async def test_fastchat_renders_what_we_render(family: str) -> None:
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    async with EngineWorker(FakeEngine(Script()), spec, Settings(family=family)) as worker:
        template = await conversation(worker)
        asked = json.dumps([[template, chat] for chat in ALL])
        prompts = run_theirs(FASTCHAT, "fastchat_forms.py", stdin=asked)
        same = []
        for chat, prompt in zip(ALL, prompts, strict=True):
            messages = [{"role": role, "content": text} for role, text in chat]
            ours, own = await worker.tokenize(messages=messages), await worker.tokenize("")
            theirs = (await worker.tokenize(prompt))[len(own) :]
            same += [chat] if theirs == (ours[len(own) :] if ours[: len(own)] == own else ours) else []
    assert same == list(exact(family))
