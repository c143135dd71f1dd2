"""What Drivetrain itself costs per token: the fake engine gives SmolLM2 ids, with two stops and one event per token.

It is measured in process, and over HTTP (only the server's CPU, while a client in another process reads). Prints one
JSON object: microseconds of CPU per token, the memory of the open streams, and the cost of an empty turn of the event
loop before and after, to compare machines and hours. With `--traced` the in-process part also runs with tracing on; the
spans go to an endpoint in another process that discards them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.prompt import Prompt
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.engines.native.describe import of_files
from drivetrain.http.address import Address
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.server.app import create_app
from drivetrain.server.run import Stop, address_of, bind, serve
from drivetrain.server.settings import ServerSettings
from drivetrain.store.store import Store
from drivetrain.telemetry.tracing import GenAiTracer
from drivetrain.tools.bench.load import Load
from drivetrain.tools.bench.outcome import Round
from drivetrain.tools.bench.remote import Endpoint, Remote
from drivetrain.tools.bench.target import TargetFacts
from drivetrain.tools.bench.workload import Closed
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

TEXT = "The quick brown fox jumps over the lazy dog, then it goes home to have some tea with milk. It is fine. "
FIELDS: dict[str, Any] = {"ignore_eos": True, "stop": ["###", "\n\nUser:"]}
SHAPES = ((1, 100, 100), (1, 400, 25), (1, 1000, 10), (1, 4000, 3), (16, 1000, 1), (128, 400, 1), (512, 200, 1))
"""Concurrent streams, tokens of each, and repetitions."""
ROUNDS = 5
"""At least, in process. The report has the median and the lowest of all rounds: other work only adds."""
SHORT = 2000
TURNS = 100_000
DISCARDING_SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Discard(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Discard)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def make_worker(tracer: GenAiTracer | None = None) -> EngineWorker:
    found = Store().pull("smollm2-135m")
    spec = ModelSpec(name="smollm2-135m", path=found.path, format=found.format)
    tokenizer = of_files(spec, lambda what, share: None).tokenizer  # in this process, as for all engines but llama.cpp
    ids = tuple(tokenizer.encode(Prompt.raw(TEXT * 5)))
    script = Script(token_ids=ids, repeat=True, max_concurrency=600, context_length=100_000)
    spec = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
    return EngineWorker(FakeEngine(script, tokenizer=tokenizer), spec, Settings(max_waiting=600), tracer=tracer)


async def in_process(tracer: GenAiTracer | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"us_per_empty_turn": await empty_turn()}]
    async with make_worker(tracer) as worker:

        async def one(tokens: int) -> None:
            async for _ in worker.stream(prompt="hi", max_tokens=tokens, **FIELDS):
                pass

        await one(200)
        for streams, tokens, times in SHAPES:
            costs = []
            for _ in range(max(times, ROUNDS)):
                before = time.process_time()
                await asyncio.gather(*(one(tokens) for _ in range(streams)))
                costs.append(round((time.process_time() - before) / streams / tokens * 1e6, 1))
            row = {"streams": streams, "tokens": tokens, "us_per_token": round(statistics.median(costs), 1)}
            rows.append({**row, "least": min(costs)})
        began = time.process_time()
        for _ in range(SHORT):
            await one(1)
        rows.append({"us_per_request_of_one_token": round((time.process_time() - began) / SHORT * 1e6, 1)})
    return [*rows, {"us_per_empty_turn": await empty_turn()}]


async def empty_turn() -> float:
    before = time.process_time()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return round((time.process_time() - before) / TURNS * 1e6, 2)


def traced() -> list[dict[str, Any]]:
    from drivetrain.telemetry.otel import open_tracer

    with subprocess.Popen([sys.executable, "-c", DISCARDING_SERVER], stdout=subprocess.PIPE, text=True) as receiver:
        try:
            assert receiver.stdout is not None
            with open_tracer(f"http://127.0.0.1:{receiver.stdout.readline().strip()}") as tracer:
                return asyncio.run(in_process(tracer))
        finally:
            receiver.terminate()


def over_http() -> list[dict[str, Any]]:
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return asyncio.run(measured(remote(server.stdout.readline().strip()), server.pid))
        finally:
            server.terminate()


def remote(url: str) -> Remote:
    stops = {"stop": FIELDS["stop"]}
    endpoint = Endpoint(address=Address.parse(url), model="fake", chat=False, extra=stops)
    return Remote(endpoint, label="fake", facts=TargetFacts(kind="over HTTP", model="fake"))


async def play(target: Remote, streams: int, tokens: int) -> Round:
    prompts = ["hi"] * streams
    return await Load(target=target, level=Closed(streams), prompts=prompts, max_tokens=tokens, timeout_s=600).play([])


async def measured(target: Remote, pid: int) -> list[dict[str, Any]]:
    rows = []
    await play(target, 1, 200)
    idle = resident(pid)
    for streams, tokens, times in SHAPES:
        before = cpu_s(pid)
        peak = idle
        for _ in range(times):
            peak = max(peak, await peak_while(target, streams, tokens, pid))
        cost = (cpu_s(pid) - before) / streams / tokens / times
        row = {"streams": streams, "tokens": tokens, "us_per_token": round(cost * 1e6, 1)}
        rows.append({**row, "mb_above_idle": round((peak - idle) / 2**20, 1)})
    return rows


async def peak_while(target: Remote, streams: int, tokens: int, pid: int) -> int:
    """The server's peak memory in bytes while it answers these streams."""
    reading = asyncio.ensure_future(play(target, streams, tokens))
    peak = 0
    while not reading.done():
        peak = max(peak, resident(pid))
        await asyncio.wait([reading], timeout=0.05)
    assert not reading.result().failures
    assert all(len(t.events) >= tokens * 0.98 for t in reading.result().answers), "events were coalesced"
    return peak


async def run_server() -> None:
    settings = ServerSettings(port=0, max_connections=4096)
    stop = Stop()
    with bind(settings) as sock:
        async with make_worker() as worker:
            models = Fleet.of({"fake": worker})

            async def start() -> None:
                return None

            def ready() -> None:
                print(address_of(sock), flush=True)

            app = create_app(models, settings)
            await serve(app, settings, sock, start=start, drain=lambda: models.drain(1.0), stop=stop, ready=ready)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help="also with tracing, in process only")
    args = parser.parse_args()
    if args.serve:
        asyncio.run(run_server())
        return
    if args.traced:
        print(json.dumps({"in_process": asyncio.run(in_process()), "traced": traced()}, indent=1))
        return
    print(json.dumps({"in_process": asyncio.run(in_process()), "http": over_http()}, indent=1))


if __name__ == "__main__":
    main()
