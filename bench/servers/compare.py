"""Two servers measured in alternate rounds; only the ratios within a pair of rounds count."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from servers.peer import Peer
from servers.process import ServerGroup, busy_s
from servers.request import Answer, Prompt, ask, make_prompts

WARM_TOKENS = 8
FOREIGN_CORES = 0.1
"""A pair is calm if other work took no more CPU than this in either round."""

SETTLE_S = 0.5
"""Between rounds, for what a server still does after its last answer; then it is paused."""

Pair = dict[str, dict[str, Any]]
"""The figures of two rounds with the same prompts: `ours` and `peer`."""


@dataclass(frozen=True, slots=True)
class Side:
    """A running server, and how to ask it."""

    peer: Peer
    group: ServerGroup

    async def round(self, prompts: list[Prompt], tokens: int) -> Round:
        form, port = self.peer.form, self.group.port
        began, foreign = time.perf_counter(), self._foreign_cpu_s()
        answers = await asyncio.gather(*(ask(port, form, prompt, tokens) for prompt in prompts))
        return Round(time.perf_counter() - began, self._foreign_cpu_s() - foreign, answers)

    def _foreign_cpu_s(self) -> float:
        """CPU time of everything but the server and this client."""
        return busy_s() - self.group.cpu_s() - time.process_time()


@dataclass(frozen=True, slots=True)
class Round:
    """Concurrent requests, and the CPU time of whatever else ran meanwhile."""

    wall_s: float
    foreign_cpu_s: float
    answers: list[Answer]

    @property
    def figures(self) -> dict[str, Any]:
        prompt_tokens = [answer.prompt_tokens for answer in self.answers]
        new_tokens = [answer.tokens for answer in self.answers]
        return {
            "tokens_per_s": round(sum(new_tokens) / self.wall_s, 2),
            "first_token_s": round(statistics.median(answer.events[0] for answer in self.answers), 4),
            "foreign_cores": round(self.foreign_cpu_s / self.wall_s, 2),
            "prompt_tokens": [min(prompt_tokens), max(prompt_tokens)],
            "new_tokens": [min(new_tokens), max(new_tokens)],
        }


@dataclass(slots=True)
class Comparison:
    """Compares `a` (ours) with `b`. The seed decides the prompts, which are the same for both."""

    a: Side
    b: Side
    tokens: int
    seed: int
    say: Callable[[str], None]

    async def pairs(self, streams: int, num: int) -> AsyncIterator[Pair]:
        """Until `num` of them are calm, but at most twice as many, after a short warm-up round of each. The servers
        take turns in going first.
        """
        rng = random.Random(f"{self.seed} {streams}")
        for side in (self.a, self.b):
            await self._round(side, make_prompts(streams, rng), WARM_TOKENS)
        num_done = num_calm = 0
        while num_calm < num and num_done < 2 * num:
            pair = await self._pair(make_prompts(streams, rng), ours_first=bool(num_done % 2))
            num_done, num_calm = num_done + 1, num_calm + calm(pair)
            rates = ", ".join(f"{name} {figures['tokens_per_s']}" for name, figures in pair.items())
            other_work = "" if calm(pair) else f" (other work: {foreign_cores(pair)} cores)"
            self.say(f"{streams} streams, pair {num_done}: {rates} tokens/s{other_work}")
            yield pair

    async def _pair(self, prompts: list[Prompt], *, ours_first: bool) -> Pair:
        order = {"ours": self.a, "peer": self.b} if ours_first else {"peer": self.b, "ours": self.a}
        rounds = {name: await self._round(side, prompts, self.tokens) for name, side in order.items()}
        return {name: rounds[name].figures for name in ("ours", "peer")}

    async def _round(self, side: Side, prompts: list[Prompt], tokens: int) -> Round:
        """With the other server paused: some spin for a second after their last answer."""
        other = self.b if side is self.a else self.a
        await asyncio.sleep(SETTLE_S)
        other.group.pause()
        try:
            return await side.round(prompts, tokens)
        finally:
            other.group.resume()


def foreign_cores(pair: Pair) -> float:
    return max(float(figures["foreign_cores"]) for figures in pair.values())


def calm(pair: Pair) -> bool:
    return foreign_cores(pair) <= FOREIGN_CORES
