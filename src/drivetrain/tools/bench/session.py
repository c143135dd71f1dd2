"""One run: the sides are measured in turns, level by level."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drivetrain.core.errors import DrivetrainError
from drivetrain.tools.bench.load import Load
from drivetrain.tools.bench.outcome import Failure, RequestOutcome, Round
from drivetrain.tools.bench.prompts import PromptMaker
from drivetrain.tools.bench.target import Target
from drivetrain.tools.bench.workload import Closed, Level, Open, Workload

WARM_UP_ARRIVALS = 8
"""Requests in the warm-up of an open loop; for a closed loop it is a whole round."""

OnProgress = Callable[[str, float], None]
"""What is being measured, and the share of the run that is done."""


class NotAnswered(DrivetrainError):
    """A side refused the request that every round sends."""


@dataclass(frozen=True, slots=True)
class BenchSide:
    """Both sides get the same prompts unless their `salt` differs, as it must if they share a cache."""

    target: Target
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """The measured rounds of one level, for each side in the order of the turns. Warm-up rounds are not kept."""

    level: Level
    rounds: tuple[list[Round], ...]


class Session:
    """`played` fills while it runs, so that an interrupted run still has what was measured."""

    def __init__(self, sides: Sequence[BenchSide], levels: Sequence[Level], workload: Workload) -> None:
        self.played: list[Played] = []
        self._sides = sides
        self._levels = levels
        self._workload = workload
        self._prompts = PromptMaker(workload.seed)
        self._done = 0

    async def prepare(self) -> None:
        """Ask every side for one token, and calibrate the length of prompts on the first. Raises `NotAnswered`."""
        texts = self._prompts.probes()
        outcomes = [[await self._probe(side, text) for text in texts] for side in self._sides]
        few, many = (outcome.prompt_tokens for outcome in outcomes[0])
        seed, shared = self._workload.seed, self._workload.shared_prefix
        if few is not None and many is not None:
            self._prompts = PromptMaker.measured(seed, (few, many), shared=shared)
        else:
            self._prompts = PromptMaker(seed, shared=shared)

    async def run(self, on_progress: OnProgress) -> None:
        """Measure the sides in turns, alternating which goes first; turn 0 is the warm-up. Raises `NotAnswered`."""
        for level in self._levels:
            played = Played(level, tuple([] for _ in self._sides))
            self.played.append(played)
            for turn in range(self._workload.rounds + 1):
                for i in order(turn, len(self._sides)):
                    await self._take_turn(played, turn, i, on_progress)

    async def _take_turn(self, played: Played, turn: int, i: int, on_progress: OnProgress) -> None:
        side, level, kept = self._sides[i], played.level, list[RequestOutcome]()
        if turn == 0 and isinstance(level, Open):
            level = level.first(WARM_UP_ARRIVALS)
        load = self._load(side, level, turn)
        doing = f"{level.label}, {side.target.label}, {f'round {turn}' if turn else 'warming up'}"
        on_progress(doing, self._done / self._num_requests)

        def one_more() -> None:
            self._done += 1
            on_progress(doing, self._done / self._num_requests)

        started = time.perf_counter()
        try:
            done = await load.play(kept, one_more)
        except asyncio.CancelledError:
            if turn and kept:
                ended, outcomes = time.perf_counter(), tuple(kept)
                part = Round(level=level, started=started, ended=ended, outcomes=outcomes, complete=False)
                played.rounds[i].append(part)
            raise
        if turn:
            played.rounds[i].append(done)
        elif not done.answers:
            failure = next(outcome.failure for outcome in done.outcomes if outcome.failure is not None)
            raise NotAnswered(_refusal(side, failure, "answered no request of the first round"))

    def _load(self, side: BenchSide, level: Level, turn: int) -> Load:
        work = self._workload
        keys = [(level.label, turn, i, side.salt) for i in range(level.num_requests)]
        prompts = [self._prompts.make(work.prompt_tokens, *key) for key in keys]
        return Load(
            target=side.target, level=level, prompts=prompts, max_tokens=work.max_tokens, timeout_s=work.timeout_s
        )

    async def _probe(self, side: BenchSide, text: str) -> RequestOutcome:
        level, kept = Closed(1), list[RequestOutcome]()
        load = Load(target=side.target, level=level, prompts=[text], max_tokens=1, timeout_s=self._workload.timeout_s)
        await load.play(kept)
        if kept[0].failure is not None:
            raise NotAnswered(_refusal(side, kept[0].failure, "does not answer"))
        return kept[0]

    @property
    def _num_requests(self) -> int:
        warm_up = sum(min(level.num_requests, WARM_UP_ARRIVALS) for level in self._levels if isinstance(level, Open))
        warm_up += sum(level.num_requests for level in self._levels if isinstance(level, Closed))
        measured = sum(level.num_requests for level in self._levels) * self._workload.rounds
        return (measured + warm_up) * len(self._sides)


def order(turn: int, num_sides: int) -> list[int]:
    """The sides take turns in going first, so that drift favours neither."""
    sides = list(range(num_sides))
    return sides[::-1] if turn % 2 else sides


def _refusal(side: BenchSide, failure: Failure, what: str) -> str:
    advice = side.target.advice(failure)
    return f"{side.target.label} {what}: {failure.kind}: {failure.message}" + (f"; {advice}" if advice else "")
