"""What prompt look-up brings on the native engine: one stream, with and without it, in turns.

    python bench/speculation.py [MODEL] [--pairs 3]

A prompt that asks for its own text back, and one that repeats nothing. The answers are the same with and without it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from typing import Any

import drivetrain

NAMES = """
river stone window garden letter winter bridge candle forest silver market harbour orange meadow kitchen mountain
violin thunder pocket lantern village feather anchor blanket compass diamond engine flower glacier hammer island
jacket kettle ladder mirror needle ocean pepper quarry ribbon saddle tunnel umbrella valley whistle yellow
"""
WORDS = NAMES.split()


def again(chance: random.Random) -> str:
    text = " ".join(chance.sample(WORDS, 40))
    return f"Repeat the text.\nText: {text}\nText: {text}\nText:"


def new(chance: random.Random) -> str:
    return "A list of facts about " + " and ".join(chance.sample(WORDS, 3)) + ":\n"


async def rate(worker: Any, prompt: str, tokens: int) -> tuple[float, tuple[int, ...]]:
    """Tokens a second after the first one, and the ids."""
    times: list[float] = []
    ids: list[int] = []
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    async for event in worker.stream(**asked):
        if isinstance(event, drivetrain.Delta) and event.token_ids:
            times.append(time.perf_counter())
            ids += event.token_ids
    return (len(ids) - 1) / (times[-1] - times[0]), tuple(ids)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    open_worker, native = drivetrain.Worker.open, dict[str, Any](engine="native")
    async with (
        open_worker(args.model, **native) as plain,
        open_worker(args.model, **native, speculative="ngram") as ngram,
    ):
        for name, made in (("its own text back", again), ("without repeats", new)):
            ratios, same = [], 0
            for pair in range(args.pairs):
                prompt = made(random.Random(f"{name} {pair}"))
                rates, ids = zip(*[await rate(worker, prompt, args.tokens) for worker in (plain, ngram)], strict=True)
                ratios.append(rates[1] / rates[0])
                same += ids[0] == ids[1]
                print(f"{name}: {rates[0]:.1f} and {rates[1]:.1f} tokens a second", flush=True)
            print(f"{name}: {statistics.median(ratios):.2f} times as fast; {same} of {args.pairs} answers are the same")
        counts = ngram.status.counts
        print(f"{counts.accepted_tokens} drafted ids were right, {counts.refused_tokens} wrong")


if __name__ == "__main__":
    asyncio.run(main())
