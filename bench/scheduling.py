"""What a long prompt costs concurrent streams, and what a shared prefix saves: the native engine, in process.

The same streams run twice for the same number of ids, with and without the long prompt. The long prompt's first token
is timed with them and alone; then come two prompts with a common prefix. Every id is timed when its step reaches the
event loop. Prints one JSON object.
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
from drivetrain.core.engine import Engine, EngineRequest, PromptStep, RequestHandle, Step
from drivetrain.core.errors import DrivetrainError
from drivetrain.worker.settings import Settings

BEGINNING = 10
"""Ids of each stream before the measuring begins."""


@dataclass(frozen=True, slots=True)
class Shape:
    streams: int
    long: int
    shared: int
    context: int


@dataclass(slots=True)
class Reading:
    """The sink of a request: when its ids came. `reached` is set once there are `goal` of them."""

    sent: float
    handle: RequestHandle | None = None
    times: list[float] = field(default_factory=list)
    cached: int = 0
    goal: int = 1
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first_s(self) -> float:
        return self.times[0] - self.sent

    def take(self, step: Step) -> None:
        if isinstance(step, PromptStep):
            self.cached = step.cached_tokens
        else:
            self.times += [time.perf_counter()] * len(step.token_ids)
            if len(self.times) >= self.goal:
                self.reached.set()

    def close(self, error: DrivetrainError | None) -> None:
        self.closed.set()

    async def abort(self) -> None:
        assert self.handle is not None
        self.handle.abort()
        await self.closed.wait()

    async def more(self, count: int) -> None:
        """Return when this many more ids have come."""
        self.goal = len(self.times) + count
        self.reached.clear()
        await self.reached.wait()

    def gaps(self, start: float) -> list[float]:
        """The times between consecutive ids, if the later one came after `start`."""
        return [later - earlier for earlier, later in pairwise(self.times) if later > start]


class Bench:
    """Requests to one engine. Prompts are random ids, each different from all others."""

    def __init__(self, engine: Engine, shape: Shape) -> None:
        self._engine = engine
        self._shape = shape
        self._rng = random.Random(0)
        self._sent = 0

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(1000, 40000) for _ in range(length))

    def send(self, prompt: tuple[int, ...], max_tokens: int | None = None) -> Reading:
        self._sent += 1
        request = EngineRequest(
            request_id=str(self._sent),
            prompt_ids=prompt,
            context_length=self._shape.context,
            max_tokens=max_tokens,
            seeds=(0,),
        )
        reading = Reading(time.perf_counter())
        reading.handle = self._engine.generate(request, reading)
        return reading

    async def first_token(self, prompt: tuple[int, ...]) -> Reading:
        """A request for one id, read to its end."""
        reading = self.send(prompt, max_tokens=1)
        await reading.closed.wait()
        return reading

    @asynccontextmanager
    async def streams(self, prompts: Sequence[tuple[int, ...]]) -> AsyncIterator[list[Reading]]:
        """Streams that are all decoding; they are aborted at the end."""
        readings = [self.send(prompt) for prompt in prompts]
        try:
            await _more(readings, BEGINNING)
            yield readings
        finally:
            await asyncio.gather(*(reading.abort() for reading in readings))

    async def warm(self) -> None:
        async with self.streams([self.prompt(32) for _ in range(self._shape.streams)]):
            await self.first_token(self.prompt(200))

    async def beside_a_long_prompt(self) -> dict[str, Any]:
        prompts = [self.prompt(32) for _ in range(self._shape.streams)]
        async with self.streams(prompts) as readings:
            long = await self.first_token(self.prompt(self._shape.long))
            beside = [reading.gaps(long.sent) for reading in readings]
        async with self.streams(prompts) as readings:
            started = time.perf_counter()
            await _more(readings, max(len(gaps) for gaps in beside))
            without = [reading.gaps(started) for reading in readings]
        alone = await self.first_token(self.prompt(self._shape.long))
        return {
            "without": _spread(_joined(without)),
            "beside": _spread(_joined(beside)),
            **{f"p{share}_ratio": _ratio(beside, without, share) for share in (50, 99)},
            "p50_ratio_by_quarter": [
                _ratio([_quarter(gaps, n) for gaps in beside], [_quarter(gaps, n) for gaps in without], 50)
                for n in range(4)
            ],
            "long_first_token_s": round(long.first_s, 2),
            "long_first_token_alone_s": round(alone.first_s, 2),
            "first_token_ratio": round(long.first_s / alone.first_s, 2),
        }

    async def after_a_shared_beginning(self) -> dict[str, Any]:
        beginning = self.prompt(self._shape.shared)
        first = await self.first_token(beginning + self.prompt(32))
        second = await self.first_token(beginning + self.prompt(32))
        assert first.cached == 0
        assert second.cached >= self._shape.shared, "the beginning was computed again"
        return {
            "first_s": round(first.first_s, 3),
            "second_s": round(second.first_s, 3),
            "cached_tokens": second.cached,
            "times_sooner": round(first.first_s / second.first_s, 1),
        }


async def _more(readings: Sequence[Reading], count: int) -> None:
    await asyncio.gather(*(reading.more(count) for reading in readings))


def _joined(gaps: Sequence[list[float]]) -> list[float]:
    return [gap for stream in gaps for gap in stream]


def _quarter(gaps: list[float], n: int) -> list[float]:
    return gaps[n * len(gaps) // 4 : (n + 1) * len(gaps) // 4]


def _ratio(these: Sequence[list[float]], those: Sequence[list[float]], share: int) -> float:
    return round(_percentile(_joined(these), share) / _percentile(_joined(those), share), 2)


def _spread(gaps: list[float]) -> dict[str, Any]:
    made = {f"p{share}_ms": round(_percentile(gaps, share) * 1000, 1) for share in (50, 90, 99)}
    return {"gaps": len(gaps), **made, "longest_ms": round(max(gaps) * 1000, 1)}


def _percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    shape = Shape(args.streams, args.long, args.shared, args.context)
    options = {
        "context_length": args.context,
        "kv_cache_gb": args.kv_cache_gb,
        "quantize": args.quantize,
        "compile": args.compile,
    }
    parts = open_parts(args.model, Settings(engine="native", engine_options=options))
    engine = parts.make()
    info = await engine.load(parts.spec, lambda what, share: None)
    try:
        bench = Bench(engine, shape)
        await bench.warm()
        rounds = [await bench.beside_a_long_prompt() for _ in range(args.rounds)] if args.long else []
        shared = [await bench.after_a_shared_beginning() for _ in range(args.rounds)] if args.shared else []
    finally:
        await engine.close()
    return {
        "model": args.model,
        "device": info.device,
        "dtype": info.dtype,
        "quantize": args.quantize or "none",
        "compile": args.compile,
        "streams": shape.streams,
        "long_prompt": shape.long,
        "shared_prefix": shape.shared,
        "long_prompt_rounds": rounds,
        "shared_prefix_rounds": shared,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--long", type=int, default=8000, help="tokens of the long prompt; 0 leaves it out")
    parser.add_argument("--shared", type=int, default=2000, help="tokens that two prompts share; 0 leaves it out")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--kv-cache-gb", type=float, default=4.0)
    parser.add_argument("--quantize", default=None, help="as for the engine")
    parser.add_argument("--compile", action="store_true", help="as for the engine")
    parser.add_argument("--rounds", type=int, default=1)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
