"""Whether two engines run the same model: fifty prompts answered greedily and compared as `drivetrain diff` does it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from drivetrain.core.capabilities import Capabilities
from drivetrain.core.results import Result
from drivetrain.tools.diff.compare import Agreement, RecordedAnswer, compare, summarize
from drivetrain.tools.diff.prompts import read_prompts
from drivetrain.tools.diff.record import Questions, record
from drivetrain.worker.worker import EngineWorker

FIFTY = read_prompts(Path(__file__).with_name("fifty_prompts.jsonl"))
"""Of all kinds: questions, many languages, code, numbers, long ones, chats in the prompt form of SmolLM2, a word."""

TOKENS = 32
AT_ONCE = 6
MOST_PARTED = 0.05
WORST_RANK = 3
"""Where two engines part, each one's token is among so many of the other's likeliest."""


class _Blocking:
    """A worker of this loop, for a thread."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()

    @property
    def capabilities(self) -> Capabilities:
        return self._worker.capabilities

    def generate(self, **request: Any) -> Result:
        return asyncio.run_coroutine_threadsafe(self._worker.generate(**request), self._loop).result()


async def answers_of(worker: EngineWorker) -> tuple[RecordedAnswer, ...]:
    """Some at a time: what that rounds is far below the tolerance."""
    blocking = _Blocking(worker)

    async def answer(prompts: tuple[str, ...]) -> tuple[RecordedAnswer, ...]:
        questions = Questions(prompts=prompts, num_tokens=TOKENS, num_top=5)
        return await asyncio.to_thread(record, blocking, questions, "it", lambda what, share: None)

    parts = await asyncio.gather(*(answer(FIFTY[first::AT_ONCE]) for first in range(AT_ONCE)))
    return tuple(parts[at % AT_ONCE][at // AT_ONCE] for at in range(len(FIFTY)))


def assert_same(first: tuple[RecordedAnswer, ...], second: tuple[RecordedAnswer, ...]) -> dict[str, Any]:
    """Gives the figures of the comparison."""
    assert len(first) == len(second) == 50
    assert len({answer.places for answer in first}) > 40, "else it would prove nothing"
    found = [compare(one, other, tolerance=0.001) for one, other in zip(first, second, strict=True)]
    assert not any(one.outcome is Agreement.OTHER_PROMPT for one in found)
    partings = [one.parting for one in found if one.parting is not None]
    ranks = [parting.worst_rank for parting in partings]
    assert len(partings) <= MOST_PARTED * len(found)
    assert all(rank is not None and rank <= WORST_RANK for rank in ranks)
    summary = summarize(found)
    return {"parted": len(partings), "ranks": ranks, "largest difference of a logprob": summary.largest_difference}
