"""What crosses to a replica, without Ray: the bytes of a call, and what it is answered with."""

from __future__ import annotations

from typing import Any

from drivetrain.core.parameters import build_request
from drivetrain.scale.ray import protocol
from drivetrain.scale.ray.replica import Replica
from drivetrain.worker.worker import EngineWorker

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "héllo"}],
    "tools": [{"function": {"name": "clock"}}],
    "reasoning_effort": "on",
}


async def test_a_prompt_and_a_chat_are_split_as_the_worker_splits_them() -> None:
    replica = Replica("fake", {})
    await replica.start()
    try:
        worker: EngineWorker = replica.worker
        for text, chat in (("héllo", None), (None, build_request(CHAT))):
            call = protocol.dumps((text, chat, None, "request"))
            ids = protocol.load_answer(list[int], await replica.tokenize(call))
            here = await (worker.tokenize(text) if chat is None else worker.tokenize(**CHAT))
            assert ids == here
            assert len(here) > 5
    finally:
        await replica.stop()
