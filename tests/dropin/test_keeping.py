"""What FastChat's API server keeps of a worker: nothing of what went wrong."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.server.dropin.conversation import conversation
from dropin.processes import FASTCHAT, run_theirs
from server.dropin_parts import speaking
from server.serving import fake


def test_a_template_that_was_refused_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def fails_once(worker: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("once")
        return await conversation(worker)

    monkeypatch.setattr("drivetrain.server.dropin.fastchat.conversation", fails_once)
    with speaking(fake()) as served:
        found = run_theirs(FASTCHAT, "fastchat_keeps.py", served.base, "fake", "fake", "fake")
    assert found[0] == "KeyError"
    assert found[1] == found[2] != "KeyError"
    assert asked == 2
