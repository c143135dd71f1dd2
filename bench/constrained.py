"""What constraints cost the native engine: streams held to a schema against free ones, and a large schema beside them.

Rounds alternate: the same number of streams, free and constrained, each for the same number of tokens. The schema can
be followed for ever and forces no token for long stretches (its strings are free), so most steps need a mask. Then
free streams run while another request comes, without a schema and with one of 100 kB, in turns, and the longest gap
between two tokens of a stream is told. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from itertools import pairwise
from typing import Any

from drivetrain import Worker
from drivetrain.core.events import Delta

ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "words": {"type": "array"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 10_000}
LARGE = {
    "type": "object",
    "properties": {
        f"property_{i}": {"type": "object", "properties": {f"q{j}": {"type": "string"} for j in range(8)}}
        for i in range(400)
    },
    "required": [f"property_{i}" for i in range(400)],
}


async def stream(worker: Any, number: int, tokens: int, **more: Any) -> list[float]:
    """When its tokens came."""
    times: list[float] = []
    asked = {"prompt": f"{number}. A list of things to buy:", "max_tokens": tokens, "seed": number, "temperature": 1.0}
    async for event in worker.stream(**asked, **more):
        if isinstance(event, Delta):
            times += [time.perf_counter()] * len(event.token_ids)
    return times


async def round_of(worker: Any, streams: int, tokens: int, **more: Any) -> float:
    """Tokens a second, of all streams together."""
    began = time.perf_counter()
    ended = await asyncio.gather(*(stream(worker, number, tokens, **more) for number in range(streams)))
    return sum(map(len, ended)) / (time.perf_counter() - began)


async def longest_gap(worker: Any, streams: int, tokens: int, *, large: bool, number: int) -> float:
    """Of all streams, between two tokens. They outlast the other request, or this would say nothing of it."""
    free = [asyncio.create_task(stream(worker, i, tokens, ignore_eos=True)) for i in range(streams)]
    await asyncio.sleep(1)
    schema = {**LARGE, "title": f"the {number}th, which nobody has compiled yet"}
    more = {"constraint": {"json_schema": schema}} if large else {}
    await worker.generate(prompt="x", max_tokens=1, **more)
    assert not any(task.done() for task in free), "give more --beside"
    ended = await asyncio.gather(*free)
    return max(later - sooner for times in ended for sooner, later in pairwise(times))


async def measured(args: argparse.Namespace) -> dict[str, Any]:
    constraint = {"json_schema": SCHEMA}
    async with Worker.open(args.model, engine=args.engine) as worker:
        await round_of(worker, args.streams, 16, ignore_eos=True)
        await round_of(worker, args.streams, 16, constraint=constraint)
        free, held = [], []
        for _ in range(args.rounds):
            free.append(await round_of(worker, args.streams, args.tokens, ignore_eos=True))
            held.append(await round_of(worker, args.streams, args.tokens, constraint=constraint))
        without, beside = [], []
        for number in range(args.rounds):
            without.append(await longest_gap(worker, 4, args.beside, large=False, number=number))
            beside.append(await longest_gap(worker, 4, args.beside, large=True, number=number))
    return {
        "model": args.model,
        "engine": args.engine,
        "streams": args.streams,
        "tokens": args.tokens,
        "free_tokens_per_s": free,
        "constrained_tokens_per_s": held,
        "ratio": statistics.median(h / f for h, f in zip(held, free, strict=True)),
        "large_schema_chars": len(json.dumps(LARGE)),
        "longest_gap_s": {"without": without, "with": beside},
        "delay_s": statistics.median(w - wo for w, wo in zip(beside, without, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engine", default="native")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--beside", type=int, default=192, help="tokens of each stream beside the large schema")
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(asyncio.run(measured(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
