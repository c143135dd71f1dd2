"""One run: what was asked of each side, in turns, level by level."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drivetrain.core.errors import DrivetrainError
from drivetrain.tools.bench.load import Load
from drivetrain.tools.bench.outcome import Failure, Outcome, Round
from drivetrain.tools.bench.prompts import Prompts
from drivetrain.tools.bench.target import Target
from drivetrain.tools.bench.workload import Closed, Level, Open, Workload

WARM_UP_ARRIVALS = 8
"""Requests of an open loop's warm-up; a closed loop's is a whole round."""

Told = Callable[[str, float], None]
"""What is being measured, and the share of the run that is done."""


class NotAnswered(DrivetrainError):
    """A side refused what every round would ask of it."""


@dataclass(frozen=True, slots=True)
class Side:
    """Both sides get the same prompts, unless their `salt` differs: so it must where they share a cache."""

    target: Target
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """The measured rounds of one level, for each side in the order of the turns. Warm-up rounds are not kept."""

    level: Level
    rounds: tuple[list[Round], ...]


class Session:
    """`played` fills while it runs, so that an interrupted run still has what was measured."""

    def __init__(self, sides: Sequence[Side], levels: Sequence[Level], workload: Workload) -> None:
        self.played: list[Played] = []
        self._sides = sides
        self._levels = levels
        self._workload = workload
        self._prompts = Prompts(workload.seed)
        self._done = 0

    async def prepare(self) -> None:
        """Ask every side for a token, and learn on the first how long prompts turn out. Raises `NotAnswered`."""
        texts = self._prompts.probes()
        asked = [[await self._probe(side, text) for text in texts] for side in self._sides]
        few, many = (outcome.prompt_tokens for outcome in asked[0])
        seed, shared = self._workload.seed, self._workload.shared_prefix
        if few is not None and many is not None:
            self._prompts = Prompts.measured(seed, (few, many), shared=shared)
        else:
            self._prompts = Prompts(seed, shared=shared)

    async def run(self, told: Told) -> None:
        """Rounds of the sides in turns, the first of a turn alternating; turn 0 warms up. Raises `NotAnswered`."""
        for level in self._levels:
            played = Played(level, tuple([] for _ in self._sides))
            self.played.append(played)
            for turn in range(self._workload.rounds + 1):
                for i in order(turn, len(self._sides)):
                    await self._take_turn(played, turn, i, told)

    async def _take_turn(self, played: Played, turn: int, i: int, told: Told) -> None:
        side, level, kept = self._sides[i], played.level, list[Outcome]()
        if turn == 0 and isinstance(level, Open):
            level = level.first(WARM_UP_ARRIVALS)
        load = self._load(side, level, turn)
        doing = f"{level.label}, {side.target.label}, {f'round {turn}' if turn else 'warming up'}"
        told(doing, self._done / self._num_requests)

        def one_more() -> None:
            self._done += 1
            told(doing, self._done / self._num_requests)

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

    def _load(self, side: Side, level: Level, turn: int) -> Load:
        work = self._workload
        places = [(level.label, turn, i, side.salt) for i in range(level.num_requests)]
        prompts = [self._prompts.make(work.prompt_tokens, *place) for place in places]
        return Load(
            target=side.target, level=level, prompts=prompts, max_tokens=work.max_tokens, timeout_s=work.timeout_s
        )

    async def _probe(self, side: Side, text: str) -> Outcome:
        level, kept = Closed(1), list[Outcome]()
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
    """Which side comes first changes from turn to turn: what drifts meanwhile helps neither."""
    sides = list(range(num_sides))
    return sides[::-1] if turn % 2 else sides


def _refusal(side: Side, failure: Failure, what: str) -> str:
    advice = side.target.advice(failure)
    return f"{side.target.label} {what}: {failure.kind}: {failure.message}" + (f"; {advice}" if advice else "")
