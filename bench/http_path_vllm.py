"""Our HTTP path against vLLM's own server: the same weights, engine options and environment, rounds in turns.

    .venv-vllm/bin/python bench/http_path_vllm.py --pairs 5

Both run in the environment of the interpreter that runs this (`make test-vllm` makes one). The one that is not being
measured is stopped meanwhile. Prints one JSON object; `bench/README.md` explains `calm` under "Peers".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers import say, serving
from servers.compare import Comparison, Pair, Side, calm
from servers.peer import Peer
from servers.process import ServerGroup
from servers.request import Chat
from servers.vllm import variables
from servers.weights import CONTEXT, MODEL, folder

KV_CACHE_GB = 1
READY_S = 600.0
IDLE_S = 5.0
FORM = Chat(MODEL, {"ignore_eos": True})


def ours(batch: int, *, eager: bool) -> Peer:
    options = ["--engine", "vllm", "--dtype", "float32", "--context-length", str(CONTEXT)]
    options += ["--kv-cache-gb", str(KV_CACHE_GB), "--max-batch", str(batch)]
    options += ["--vllm-args", '{"enforce_eager": true}'] if eager else []
    return _peer("ours", "/ready", ["-m", "drivetrain", "serve", MODEL, *options])


def theirs(batch: int, *, eager: bool) -> Peer:
    """Without logs and statistics of its own, as ours runs the same engine."""
    options = ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(batch)]
    options += ["--kv-cache-memory-bytes", str(KV_CACHE_GB * 2**30), "--generation-config", "vllm"]
    options += ["--disable-log-stats", "--disable-uvicorn-access-log", "--host", "127.0.0.1"]
    options += ["--enforce-eager"] if eager else []
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder()), "--served-model-name", MODEL]
    return _peer("vllm", "/health", [*server, *options])


def _peer(name: str, ready_path: str, command: Sequence[str]) -> Peer:
    return Peer(
        name=name,
        title=" ".join(command),
        form=FORM,
        arguments=lambda port: [*command, "--port", str(port)],
        variables=variables(Path(sys.prefix)),
        ready_path=ready_path,
        ready_s=READY_S,
        prepare=folder,
    )


def idle_cores(group: ServerGroup) -> float:
    before = group.cpu_s()
    time.sleep(IDLE_S)
    return round((group.cpu_s() - before) / IDLE_S, 3)


def row(streams: int, pairs: list[Pair]) -> dict[str, Any]:
    """Medians over the calm pairs, ours over theirs, or over all pairs if none was calm."""
    taken = [pair for pair in pairs if calm(pair)] or pairs
    for pair in taken:
        if any(pair["ours"][name] != pair["peer"][name] for name in ("prompt_tokens", "new_tokens")):
            raise RuntimeError(f"the two did different work: {pair}")
    later_s = [pair["ours"]["first_token_s"] - pair["peer"]["first_token_s"] for pair in taken]
    return {
        "streams": streams,
        "pairs": [len(taken), len(pairs)],
        "ratio": round(statistics.median(p["ours"]["tokens_per_s"] / p["peer"]["tokens_per_s"] for p in taken), 4),
        "first_token_later_ms": round(1000 * statistics.median(later_s), 1),
        "tokens_per_s": [[pair[side]["tokens_per_s"] for pair in taken] for side in ("ours", "peer")],
        "first_token_ms": [
            [round(1000 * pair[side]["first_token_s"], 1) for pair in taken] for side in ("ours", "peer")
        ],
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    batch = max(args.streams)
    a, b = ours(batch, eager=args.eager), theirs(batch, eager=args.eager)
    with serving(a) as first, serving(b) as second:
        idle = [idle_cores(group) for group in (first, second)]
        say(f"idle: {idle} cores")
        comparison = Comparison(Side(a, first), Side(b, second), args.tokens, args.seed, say)
        table = [
            row(streams, [pair async for pair in comparison.pairs(streams, args.pairs)]) for streams in args.streams
        ]
    return {"ours": a.title, "theirs": b.title, "variables": a.variables, "idle_cores": idle, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5, help="calm pairs per number of streams (default: 5)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="seed of the prompts")
    parser.add_argument("--eager", action="store_true", help="neither compiles: ready sooner, slower after that")
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
