"""A worker that ends is offered no longer, by either controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from dropin.conftest import Both, dbgpt_models, fastchat_models
from dropin.processes import Worker, until

pytestmark = pytest.mark.slow


def test_both_controllers_hear_of_the_end(smollm2: str, both: Both, tmp_path: Path) -> None:
    flags = ("--fastchat-controller", both.fastchat.url, "--dbgpt-controller", both.dbgpt.url)
    worker = Worker(smollm2, tmp_path, *flags, name="leaving")
    with worker.running(worker.ready):
        until(lambda: "leaving" in fastchat_models(both.fastchat), "not registered at FastChat's controller")
        until(lambda: "leaving@llm" in dbgpt_models(both.dbgpt), "not registered at DB-GPT's controller")
        assert worker.stop() == 0
    assert "leaving" not in fastchat_models(both.fastchat)
    assert "leaving@llm" not in dbgpt_models(both.dbgpt)
