"""What `--quantize int8` costs and gains on a CPU, compared with float32 of the same model.

Two processes with one engine each are measured in turns: tokens per second while all streams decode. Then both read
`passage.txt`: how often the likeliest next token is the same, and the ratio of perplexities. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import drivetrain
from drivetrain.core.events import Delta
from drivetrain.worker.worker import EngineWorker

PASSAGE = Path(__file__).parent / "passage.txt"
NEW_TOKENS = 64
PROMPTS = 17
"""How many sentences of the passage are used as prompts."""


async def serve(model: str, quantize: str, *, compiled: bool) -> None:
    """The child process: one engine, which answers each line of JSON with another."""
    settings: dict[str, Any] = {"device": "cpu", "quantize": quantize, "compile": compiled, "prefix_cache": False}
    async with drivetrain.Worker.open(model, "native", **settings) as worker:
        loop = asyncio.get_running_loop()
        print(json.dumps({"ready": list(worker.metadata.notes)}), flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            answer = await (decode(worker, command["streams"]) if "streams" in command else read(worker))
            print(json.dumps(answer), flush=True)


async def decode(worker: EngineWorker, streams: int) -> dict[str, Any]:
    sentences = PASSAGE.read_text("utf-8").replace("\n", " ").split(". ")

    async def one(number: int) -> list[float]:
        times: list[float] = []
        prompt = sentences[number % PROMPTS]
        async for event in worker.stream(prompt=prompt, max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True):
            if isinstance(event, Delta):
                times += [time.perf_counter()] * len(event.token_ids)
        return times

    rounds = await asyncio.gather(*(one(number) for number in range(streams)))
    started, ended = max(times[0] for times in rounds), min(times[-1] for times in rounds)
    tokens = sum(sum(started < moment <= ended for moment in times) for times in rounds)
    return {"tokens_per_s": tokens / (ended - started)}


async def read(worker: EngineWorker) -> dict[str, Any]:
    """The likeliest next id at each place of the passage, and the mean logprob of the actual tokens."""
    result = await worker.generate(prompt=PASSAGE.read_text("utf-8"), max_tokens=0, echo=True, prompt_logprobs=1)
    entries = [(entry, entry.logprob) for entry in result.choices[0].logprobs or () if entry.logprob is not None]
    return {
        "likeliest": [entry.top[0].token_id for entry, _ in entries],
        "logprob": statistics.fmean(logprob for _, logprob in entries),
        "resident_mb": resident_mb(),
    }


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Side:
    def __init__(self, model: str, quantize: str, *, compiled: bool) -> None:
        command = [sys.executable, __file__, model, "--side", quantize, *(["--compile"] if compiled else [])]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.notes = self._line()["ready"]

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        print(json.dumps(command), file=self._child.stdin, flush=True)
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        found: dict[str, Any] = json.loads(self._child.stdout.readline())
        return found

    def end(self) -> None:
        self._child.terminate()
        self._child.wait()


def compare(model: str, streams: list[int], pairs: int, *, compiled: bool) -> dict[str, Any]:
    sides = [Side(model, quantize, compiled=compiled) for quantize in ("none", "int8")]
    try:
        return {
            "notes": sides[1].notes,
            "compile": compiled,
            "decoding": [in_turns(sides, number, pairs) for number in streams],
            "passage": on_the_passage(sides),
        }
    finally:
        for side in sides:
            side.end()


def in_turns(sides: list[Side], streams: int, pairs: int) -> dict[str, Any]:
    for side in sides:
        side.ask(streams=streams)
    found: list[tuple[float, ...]] = []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        rates = {side: float(sides[side].ask(streams=streams)["tokens_per_s"]) for side in order}
        found.append((rates[0], rates[1]))
    return {
        "streams": streams,
        "float32": round(statistics.median(one[0] for one in found), 1),
        "int8": round(statistics.median(one[1] for one in found), 1),
        "ratio": round(statistics.median(one[1] / one[0] for one in found), 3),
        "ratios": [round(one[1] / one[0], 3) for one in found],
    }


def on_the_passage(sides: list[Side]) -> dict[str, Any]:
    plain, rounded = (side.ask() for side in sides)
    same = [a == b for a, b in zip(plain["likeliest"], rounded["likeliest"], strict=True)]
    return {
        "tokens": len(same) + 1,
        "top1_agreement": round(statistics.fmean(same), 4),
        "perplexity": round(math.exp(-plain["logprob"]), 3),
        "perplexity_ratio": round(math.exp(plain["logprob"] - rounded["logprob"]), 4),
        "resident_mb": [round(plain["resident_mb"]), round(rounded["resident_mb"])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="both sides with compiled steps")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        asyncio.run(serve(args.model, args.side, compiled=args.compile))
        return
    streams = [int(number) for number in args.streams.split(",")]
    print(json.dumps(compare(args.model, streams, args.pairs, compiled=args.compile), indent=1))


if __name__ == "__main__":
    main()
