"""Requests that come at once start at once, if the engine is idle."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from drivetrain.core.engine import EngineRequest, ModelSpec, WeightsFormat
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker import prepare
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import Worker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)


class Watched(FakeEngine):
    """Notes how many requests were still being prepared as each one was handed over."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.behind: list[int] = []
        self.preparer: Any = None

    def generate(self, request: EngineRequest) -> Any:
        self.behind.append(self.preparer._preparing)
        return super().generate(request)


async def test_nobody_is_handed_over_while_others_are_prepared() -> None:
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        await asyncio.gather(*(worker.generate(prompt=f"x{i}") for i in range(20)))
    assert engine.behind == [0] * 20


async def test_a_slow_one_is_not_waited_for(monkeypatch: Any) -> None:
    engine = Watched(Script(text="ab"))
    async with Worker(engine, SPEC, Settings()) as worker:
        engine.preparer = worker._preparer
        assert worker._preparer is not None
        render = worker._preparer._prepare

        def slow(request: Any, *rest: Any) -> Any:
            if request.prompt == "slow":
                time.sleep(0.5)
            return render(request, *rest)

        monkeypatch.setattr(worker._preparer, "_prepare", slow)
        behind = asyncio.create_task(worker.generate(prompt="slow"))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await worker.generate(prompt="quick")
        assert time.monotonic() - begun < 0.3 + prepare.GATHER_S
        assert not behind.done()
        await behind
    assert engine.behind == [1, 0]
