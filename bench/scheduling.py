"""What a long prompt costs the streams beside it, and what a shared beginning saves: the native engine, in process.

One run measures the stalls in three stretches of the same streams (before the long prompt, while it is computed, after
it), the prompt's first token beside them and alone, and the first tokens of two prompts with a common beginning.
Every id is timed when its step reaches the event loop. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from drivetrain.assembly import open_parts
from drivetrain.core.engine import Engine, EngineRequest, EngineStream, PromptStep
from drivetrain.worker.settings import Settings


@dataclass(frozen=True, slots=True)
class Plan:
    streams: int
    stretch: int
    """Ids of each stream before the long prompt comes, and again after it."""
    long: int
    shared: int
    context: int


@dataclass(slots=True)
class Reading:
    """A request, and when its ids came. `reached` is set when there are `goal` of them."""

    stream: EngineStream
    sent: float
    times: list[float] = field(default_factory=list)
    cached: int = 0
    goal: int = 1
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first_s(self) -> float:
        return self.times[0] - self.sent

    async def read(self) -> None:
        async for step in self.stream:
            if isinstance(step, PromptStep):
                self.cached = step.cached_tokens
            else:
                self.times += [time.perf_counter()] * len(step.token_ids)
                if len(self.times) >= self.goal:
                    self.reached.set()

    async def more(self, count: int) -> None:
        """Return when so many more ids have come."""
        self.goal = len(self.times) + count
        self.reached.clear()
        await self.reached.wait()

    def gaps(self, start: float, end: float) -> list[float]:
        """Between ids that came one after the other, of which the later one came in this time."""
        return [later - earlier for earlier, later in pairwise(self.times) if start < later <= end]


class Bench:
    """Requests to one engine, each with a prompt of random ids that no other one has, unless it is given."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self._chance = random.Random(0)
        self._sent = 0

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._chance.randrange(1000, 40000) for _ in range(length))

    def send(self, prompt: tuple[int, ...], max_tokens: int | None = None) -> Reading:
        self._sent += 1
        request = EngineRequest(
            request_id=str(self._sent),
            prompt_ids=prompt,
            context_length=self._plan.context,
            max_tokens=max_tokens,
            seeds=(0,),
        )
        return Reading(self._engine.generate(request), time.perf_counter())

    async def first_token(self, prompt: tuple[int, ...]) -> Reading:
        """Alone in the engine, read to its end: one id."""
        reading = self.send(prompt, max_tokens=1)
        await reading.read()
        return reading

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[list[Reading]]:
        """All of them decode when this begins; they are aborted when it ends."""
        readings = [self.send(self.prompt(32)) for _ in range(self._plan.streams)]
        tasks = [asyncio.create_task(reading.read()) for reading in readings]
        try:
            await asyncio.gather(*(reading.reached.wait() for reading in readings))
            yield readings
        finally:
            await asyncio.gather(*(reading.stream.aclose() for reading in readings))
            await asyncio.gather(*tasks, return_exceptions=True)

    async def beside_a_long_prompt(self) -> dict[str, Any]:
        async with self.streams() as readings:
            marks = [time.perf_counter()]
            await self.stretch(readings)
            marks.append(time.perf_counter())
            long = await self.first_token(self.prompt(self._plan.long))
            marks.append(time.perf_counter())
            await self.stretch(readings)
            marks.append(time.perf_counter())
        gaps = [[gap for reading in readings for gap in reading.gaps(start, end)] for start, end in pairwise(marks)]
        without, beside = gaps[0] + gaps[2], gaps[1]
        alone = await self.first_token(self.prompt(self._plan.long))
        return {
            "without": _spread(without),
            "beside": _spread(beside),
            "p99_ratio": round(_percentile(beside, 99) / _percentile(without, 99), 2),
            "p50_ratio": round(_percentile(beside, 50) / _percentile(without, 50), 2),
            "long_first_token_s": round(long.first_s, 2),
            "long_first_token_alone_s": round(alone.first_s, 2),
            "first_token_ratio": round(long.first_s / alone.first_s, 2),
        }

    async def stretch(self, readings: Sequence[Reading]) -> None:
        await asyncio.gather(*(reading.more(self._plan.stretch) for reading in readings))

    async def after_a_shared_beginning(self) -> dict[str, Any]:
        beginning = self.prompt(self._plan.shared)
        first = await self.first_token(beginning + self.prompt(32))
        second = await self.first_token(beginning + self.prompt(32))
        assert first.cached == 0
        assert second.cached >= self._plan.shared, "the beginning was computed again"
        return {
            "first_s": round(first.first_s, 3),
            "second_s": round(second.first_s, 3),
            "cached_tokens": second.cached,
            "times_sooner": round(first.first_s / second.first_s, 1),
        }


def _spread(gaps: list[float]) -> dict[str, Any]:
    made = {f"p{share}_ms": round(_percentile(gaps, share) * 1000, 1) for share in (50, 90, 99)}
    return {"gaps": len(gaps), **made, "longest_ms": round(max(gaps) * 1000, 1)}


def _percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    plan = Plan(args.streams, args.stretch, args.long, args.shared, args.context)
    settings = Settings(engine="native", context_length=args.context, kv_cache_gb=args.kv_cache_gb)
    engine, spec = open_parts(args.model, settings)
    info = await engine.load(spec, lambda what, share: None)
    try:
        bench = Bench(engine, plan)
        async with bench.streams() as readings:  # warm
            await bench.first_token(bench.prompt(200))
            await bench.stretch(readings)
        rounds = [await bench.beside_a_long_prompt() for _ in range(args.rounds)] if args.long else []
        shared = [await bench.after_a_shared_beginning() for _ in range(args.rounds)] if args.shared else []
    finally:
        await engine.close()
    return {
        "model": args.model,
        "device": info.device,
        "dtype": info.dtype,
        "streams": plan.streams,
        "long_prompt": plan.long,
        "shared_prefix": plan.shared,
        "long_prompt_rounds": rounds,
        "shared_prefix_rounds": shared,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--stretch", type=int, default=200, help="ids of each stream before and after the long prompt")
    parser.add_argument("--long", type=int, default=8000, help="tokens of the long prompt; 0 leaves it out")
    parser.add_argument("--shared", type=int, default=2000, help="tokens that two prompts share; 0 leaves it out")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--kv-cache-gb", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=1)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
