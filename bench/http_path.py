"""Our HTTP path against llama.cpp's own server: the same weights, interleaved rounds.

Both run with their defaults. With `--alike`, theirs is the server that our engine would start, with one slot per
stream, asked directly. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from servers import llamacpp_server
from servers.process import free_port

from drivetrain.core.engine import ModelSpec
from drivetrain.engines.llamacpp.child.process import ServerProcess
from drivetrain.engines.llamacpp.loading import open_model
from drivetrain.http.address import Address
from drivetrain.store.store import Store
from drivetrain.tools.bench.remote import Endpoint, Remote
from drivetrain.tools.bench.report import compare
from drivetrain.tools.bench.served import serving
from drivetrain.tools.bench.session import BenchSide, Played, Session
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.workload import Closed, Workload

MODEL = "smollm2-135m:Q4_1"  # as the file is, for both
CONTEXT = 1024
PROMPT_TOKENS = 51


@contextlib.contextmanager
def with_defaults() -> Iterator[Remote]:
    gguf = Store().pull(MODEL).path
    port = free_port()
    command = [sys.executable, llamacpp_server.__file__, str(gguf), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it prints its address once the model is loaded
        try:
            yield remote("theirs", f"http://127.0.0.1:{port}/v1", "")
        finally:
            process.terminate()


@contextlib.contextmanager
def theirs(slots: int) -> Iterator[Remote]:
    found = Store().pull(MODEL)
    options = {"slots": slots, "context_length": CONTEXT}
    spec = ModelSpec(name=MODEL, path=found.path, format=found.format, options=options)
    process = ServerProcess(open_model(spec).launch)
    process.start()
    try:
        yield remote("theirs", f"http://127.0.0.1:{process.port}/v1", process.key)
    finally:
        process.stop()


def remote(label: str, url: str, key: str) -> Remote:
    endpoint = Endpoint(address=Address.parse(url), model=MODEL, key=key)
    return Remote(endpoint, label=label, facts=TargetFacts(kind="over HTTP", model=MODEL))


def row(played: Played) -> dict[str, Any]:
    """The medians over the pairs, ours over theirs."""
    ours, theirs = played.rounds
    found = compare(ours, theirs)
    if found is None or found.first_token_later_s is None or any(r.failures for r in (*ours, *theirs)):
        raise RuntimeError(f"{played.level.label}: requests failed")
    return {
        "load": played.level.label,
        "ratio": round(found.throughput_ratio.median, 4),
        "first_token_later_ms": round(1000 * found.first_token_later_s.median, 1),
        "tokens_per_s": [[round(r.tokens_per_s, 1) for r in rounds] for rounds in played.rounds],
        "first_token_ms": [[round(1000 * (r.first_s or 0), 1) for r in rounds] for rounds in played.rounds],
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--alike", action="store_true", help="the same process options on both sides")
    args = parser.parse_args()
    slots = max(args.streams)
    workload = Workload(
        prompt_tokens=PROMPT_TOKENS,
        max_tokens=args.tokens,
        shared_prefix=0,
        seed=0,
        rounds=args.pairs,
        timeout_s=600,
    )
    options = ["--slots", str(slots), "--context-length", str(CONTEXT)] if args.alike else []
    with theirs(slots) if args.alike else with_defaults() as b:
        started = time.perf_counter()
        async with serving(MODEL, options) as served:
            ready_s = time.perf_counter() - started
            sides = [BenchSide(remote("ours", served.url, served.key)), BenchSide(b)]
            session = Session(sides, [Closed(streams) for streams in args.streams], workload)
            await session.prepare()
            await session.run(lambda doing, share: None)
    table = [row(played) for played in session.played]
    print(
        json.dumps({"model": MODEL, "serve_ready_s": round(ready_s, 2), "pairs": args.pairs, "table": table}, indent=2)
    )


if __name__ == "__main__":
    asyncio.run(main())
