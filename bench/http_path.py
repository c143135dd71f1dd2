"""Our HTTP path against llama.cpp's own server: the same weights and process options, interleaved rounds.

Ours is `drivetrain serve`; theirs is the server that our engine would start, asked directly. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from load import Round, Target

from drivetrain.core.engine import ModelSpec
from drivetrain.engines.llamacpp.loading import open_model
from drivetrain.engines.llamacpp.process import ServerProcess
from drivetrain.store.store import Store

MODEL = "smollm2-135m"
CONTEXT = 1024
PATH = "/v1/chat/completions"
WORDS = ("river", "stone", "lamp", "cloud", "horse", "copper", "garden", "window", "letter", "winter", "bridge")


@contextlib.contextmanager
def theirs(slots: int) -> Iterator[Target]:
    found = Store().ensure(MODEL, lambda what, share: None)
    options = {"slots": slots, "context_length": CONTEXT}
    spec = ModelSpec(name=MODEL, path=found.path, format=found.format, options=options)
    process = ServerProcess(open_model(spec).launch)
    process.start()
    try:
        yield Target(process.port, process.key)
    finally:
        process.stop()


@contextlib.contextmanager
def ours(slots: int) -> Iterator[tuple[Target, float]]:
    """With the seconds from the command to the first line that says it is ready."""
    command = [sys.executable, "-m", "drivetrain", "serve", MODEL, "--port", "0", "--slots", str(slots)]
    command += ["--context-length", str(CONTEXT)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            raise RuntimeError("the server did not start")
        try:
            yield Target(int(found[1])), time.perf_counter() - started
        finally:
            process.terminate()
            process.communicate(timeout=60)


def bodies(streams: int, tokens: int, turn: int) -> list[dict[str, Any]]:
    """Prompts of about 35 tokens, all different, the same for both servers."""
    made = []
    for i in range(streams):
        words = " ".join(WORDS[(turn * 7 + i * 3 + j * (i + 1)) % len(WORDS)] for j in range(12))
        content = f"Round {turn}, story {i}: {words}."
        made.append({"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": tokens})
    return [{**body, "temperature": 0, "ignore_eos": True} for body in made]


async def compare(a: Target, b: Target, streams: int, tokens: int, pairs: int) -> dict[str, Any]:
    """Pairs of rounds, the first of a pair taken in turns, after one of each to warm up."""
    rounds: dict[str, list[Round]] = {"ours": [], "theirs": []}
    for pair in range(pairs + 1):
        order = [("ours", a), ("theirs", b)]
        for name, target in order if pair % 2 else reversed(order):
            done = await target.round(PATH, bodies(streams, tokens, pair))
            if pair:
                rounds[name].append(done)
    pairwise = list(zip(rounds["ours"], rounds["theirs"], strict=True))
    return {
        "streams": streams,
        "ratio": round(statistics.median(x.tokens_per_s / y.tokens_per_s for x, y in pairwise), 4),
        "tokens_per_s": {n: round(statistics.median(r.tokens_per_s for r in rs), 1) for n, rs in rounds.items()},
        "first_token_later_ms": round(1000 * statistics.median(x.first_s - y.first_s for x, y in pairwise), 1),
        "first_token_ms": {n: round(1000 * statistics.median(r.first_s for r in rs), 1) for n, rs in rounds.items()},
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=9)
    args = parser.parse_args()
    slots = max(args.streams)
    with theirs(slots) as b, ours(slots) as (a, ready_s):
        table = [await compare(a, b, streams, args.tokens, args.pairs) for streams in args.streams]
    print(
        json.dumps({"model": MODEL, "serve_ready_s": round(ready_s, 2), "pairs": args.pairs, "table": table}, indent=2)
    )


if __name__ == "__main__":
    asyncio.run(main())
