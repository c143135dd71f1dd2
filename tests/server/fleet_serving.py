"""A real server on several fakes, each a worker of its own, that come and go as the fleet says."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.core.engine import ModelSpec, Progress, WeightsFormat
from drivetrain.core.stats import Stats
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer, Opened
from drivetrain.scale.fleet.policy import FleetLimits
from drivetrain.server.app import create_app
from drivetrain.server.run import Stop, bind, serve
from drivetrain.server.settings import ServerSettings
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

Reply = tuple[int, dict[str, str], Any]


def fake_offer(
    name: str,
    *,
    load_s: float = 0.0,
    script: dict[str, Any] | None = None,
    engines: list[FakeEngine] | None = None,
    tokenizer: Tokenizer | None = None,
    **more: Any,
) -> Offer:
    """A fake that says its own name. Each one that was loaded is added to `engines`."""
    stats, made = Stats(), [] if engines is None else engines

    async def open_worker(report: Progress) -> Opened:
        report("loading", 0.25)
        await asyncio.sleep(load_s)
        spec = ModelSpec(name=name, path=Path(), format=WeightsFormat.NONE)
        made.append(FakeEngine(Script(**{"text": name, **(script or {})}), tokenizer=tokenizer))
        worker = EngineWorker(made[-1], spec, Settings(name=name), stats=stats)
        await worker.start()
        return worker

    return Offer(name=name, open=open_worker, stats=stats, **more)


@dataclass
class ServedFleet:
    port: int
    fleet: Fleet
    loop: asyncio.AbstractEventLoop
    key: str = ""

    def ask(self, method: str, path: str, body: Any = None, key: str | None = None, timeout_s: float = 60) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        key = self.key if key is None else key
        with contextlib.closing(connection):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(response.read())

    def complete(self, model: str, **more: Any) -> Reply:
        return self.ask("POST", "/v1/completions", {"model": model, "prompt": "x", "temperature": 0, **more})

    def said(self, model: str, **more: Any) -> str:
        status, _, document = self.complete(model, **more)
        assert status == 200, document
        return str(document["choices"][0]["text"])

    def admin(self, verb: str, model: str, status: int) -> dict[str, Any]:
        got, _, document = self.ask("POST", f"/admin/models/{verb}", {"model": model})
        assert got == status, document
        assert isinstance(document, dict)
        return document

    def report(self, model: str) -> dict[str, Any]:
        _, _, document = self.ask("GET", "/admin/models")
        return next(dict(row) for row in document["data"] if row["id"] == model)

    def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.ask("GET", "/v1/models")[2]["data"]}

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.ask("GET", "/admin/models")[2]
            time.sleep(0.01)


@contextlib.contextmanager
def serving_fleet(
    *offers: Offer, limits: FleetLimits | None = None, early: bool = False, **settings: Any
) -> Iterator[ServedFleet]:
    """At the end every model is freed, and no task of the server is left. `early`: in the midst of loading."""
    made = ServerSettings(port=0, **settings)
    sock = bind(made)
    up = threading.Event()
    found: list[ServedFleet] = []
    stops: list[Stop] = []
    left: list[set[str]] = []

    async def main() -> None:
        fleet, stop = Fleet(offers, limits), Stop()
        key = made.api_keys[0] if made.api_keys else ""
        found.append(ServedFleet(sock.getsockname()[1], fleet, asyncio.get_running_loop(), key))
        stops.append(stop)
        app = create_app(fleet, made)
        if early:
            up.set()
        try:
            await serve(app, made, sock, start=fleet.start, drain=lambda: fleet.drain(2.0), stop=stop, ready=up.set)
        finally:
            await fleet.stop()
            await asyncio.sleep(0)
            left.append({task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}})

    def run() -> None:
        try:
            asyncio.run(main())
        finally:
            up.set()

    thread = threading.Thread(target=run, name="test-fleet", daemon=True)
    thread.start()
    assert up.wait(60)
    try:
        yield found[0]
    finally:
        stops[0].request()
        thread.join(60)
        assert not thread.is_alive()
        assert left == [set()]
        assert not list(found[0].fleet)
