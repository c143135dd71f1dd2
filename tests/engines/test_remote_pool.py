"""Two upstreams in processes of their own, one of them killed under load: every request ends, the breaker opens and
closes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from remote_rigs import PATIENT, ends, engine_of, error, head, raw, says, scripted, stream, usage, worker_at

from drivetrain.core.errors import DrivetrainError, EngineFailed, LoadFailed, NotReady
from drivetrain.core.events import Finished
from drivetrain.engines.remote.breaker import MIN_OUTCOMES, BreakerState
from drivetrain.worker.worker import EngineWorker

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}]}
ASK: dict[str, Any] = {"prompt": "x", "temperature": 0, "max_tokens": 30, "ignore_eos": True}

_SERVER = """
import dataclasses, sys
from drivetrain import assembly
from drivetrain.cli.main import main
from drivetrain.engines.base.kind import EntryPoints
from drivetrain.engines.fake import scripted
make = lambda: scripted(repeat=True, step_delay_s=0.002)
enter = lambda: EntryPoints(make=make)
assembly.ENGINES["fake"] = dataclasses.replace(assembly.ENGINES["fake"], enter=enter)
sys.exit(main(sys.argv[1:]))
"""


class Far:
    """A Drivetrain on a port that stays the same when it is started again."""

    def __init__(self) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DRIVETRAIN_")}
        self._child = subprocess.Popen(
            [sys.executable, "-c", _SERVER, "serve", "fake", "--port", str(self.port), "--quiet"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def wait(self) -> None:
        end = time.monotonic() + 90
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                sock.sendall(b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                if b" 200 " in sock.recv(100):
                    return
            assert time.monotonic() < end
            time.sleep(0.05)

    def kill(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()


@pytest.fixture
def two() -> Iterator[tuple[Far, Far]]:
    pair = (Far(), Far())
    for far in pair:
        far.start()
    try:
        for far in pair:
            far.wait()
        yield pair
    finally:
        for far in pair:
            far.kill()


async def one(worker: EngineWorker) -> str:
    """How it ended. A request without an ending is a timeout, and fails the test."""
    try:
        async with asyncio.timeout(60):
            events = [event async for event in worker.stream(**ASK)]
    except DrivetrainError as exc:
        return type(exc).__name__
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.completion_tokens == ASK["max_tokens"]
    return "finished"


async def test_one_of_two_is_killed_under_load_and_comes_back(two: tuple[Far, Far]) -> None:
    async with worker_at(two[0].url, two[1].url, model="fake", timeouts=PATIENT, max_waiting=500) as worker:
        pool = engine_of(worker).pool
        assert pool is not None
        first, second = pool.upstreams
        endings: Counter[str] = Counter()
        going = True

        async def client() -> None:
            while going:
                endings[await one(worker)] += 1

        async def until(state: BreakerState, within_s: float) -> None:
            async with asyncio.timeout(within_s):
                while first.breaker.state is not state:
                    await asyncio.sleep(0.005)

        clients = [asyncio.create_task(client()) for _ in range(8)]
        await asyncio.sleep(0.5)
        assert first.taken
        assert second.taken
        two[0].kill()
        await until(BreakerState.OPEN, 30)
        assert worker.status.engine_alive
        assert worker.status.upstreams == (False, True)
        await asyncio.sleep(0.5)
        lost = endings["EngineFailed"]  # not at once: the breaker hears of a break before the reader does
        two[0].start()
        await until(BreakerState.CLOSED, 90)
        assert worker.status.upstreams == (True, True)
        taken = first.taken
        async with asyncio.timeout(30):
            while first.taken < taken + 10:
                await asyncio.sleep(0.01)
        going = False
        await asyncio.gather(*clients)
        assert set(endings) <= {"finished", "EngineFailed"}
        assert endings["finished"] > 20
        assert lost <= 8, "only what was in mid-stream on the killed one is lost"
        assert endings["EngineFailed"] == lost
        assert first.breaker.openings == 1
        assert second.breaker.openings == 0
        async with asyncio.timeout(5):
            while worker.status.running or engine_of(worker).busy:
                await asyncio.sleep(0.005)


async def test_when_all_are_gone_health_says_so_and_comes_back(two: tuple[Far, Far]) -> None:
    async with worker_at(two[0].url, model="fake", timeouts=PATIENT) as worker:
        assert await one(worker) == "finished"
        two[0].kill()
        endings = [await one(worker) for _ in range(4)]
        assert set(endings) <= {"EngineFailed", "NotReady"}
        with pytest.raises(NotReady):
            await worker.generate(**ASK)
        dead = worker.status
        assert not dead.engine_alive
        two[0].start()
        async with asyncio.timeout(90):
            while not worker.status.engine_alive:
                await asyncio.sleep(0.01)
        assert await one(worker) == "finished"


GOOD = stream(says("good"), ends(), usage(1, 1))


async def test_another_upstream_answers_in_its_place() -> None:
    async with scripted(error(502)) as bad, scripted(GOOD) as good, worker_at(bad.url, good.url) as worker:
        for _ in range(6):
            assert (await worker.generate(**CHAT)).text == "good"
        assert len(good.generations) == 6
        assert len(bad.generations) == 3, "after that it is left out"


async def test_a_broken_request_is_tried_elsewhere_once_and_ejects_nobody() -> None:
    async with scripted(error(500)) as one_, scripted(error(500)) as other, worker_at(one_.url, other.url) as worker:
        with pytest.raises(EngineFailed):
            await worker.generate(**CHAT)
        assert (len(one_.generations), len(other.generations)) == (1, 1)
        one_.answers = other.answers = [GOOD]
        assert (await worker.generate(**CHAT)).text == "good"


async def test_who_answers_500_most_of_the_time_is_an_outlier() -> None:
    async with scripted(error(500)) as bad, scripted(GOOD) as good, worker_at(bad.url, good.url) as worker:
        for _ in range(30):
            assert (await worker.generate(**CHAT)).text == "good"
        assert len(bad.generations) == MIN_OUTCOMES


async def test_a_full_one_sends_us_to_the_other() -> None:
    async with scripted(error(429)) as full, scripted(GOOD) as good, worker_at(full.url, good.url) as worker:
        for _ in range(4):
            assert (await worker.generate(**CHAT)).text == "good"


async def test_who_is_not_there_at_the_start_may_come_later() -> None:
    async with scripted(GOOD) as good, scripted(GOOD) as later:
        gone = later.models
        later.models = {"data": 5}
        async with worker_at(good.url, later.url) as worker:
            assert (await worker.generate(**CHAT)).text == "good"
            assert not later.generations
            later.models = gone
            async with asyncio.timeout(30):
                while not later.generations:
                    await worker.generate(**CHAT)
                    await asyncio.sleep(0.01)


async def test_one_on_trial_is_trusted_with_its_first_event() -> None:
    long = raw(head() + f"data: {says('long')}\n\n".encode(), hang=True)
    async with scripted(long) as upstream, worker_at(upstream.url, timeouts=PATIENT) as worker:
        pool = engine_of(worker).pool
        assert pool is not None
        pool.upstreams[0].breaker.open()
        async with asyncio.timeout(30):
            while not pool.alive:
                await asyncio.sleep(0.01)
        running = worker.stream(**CHAT)
        for _ in range(2):
            await running.__anext__()
        upstream.answers = [GOOD]
        assert (await worker.generate(**CHAT)).text == "good", "while the first one still runs"
        await running.aclose()


async def test_one_that_serves_another_model_now_stays_out() -> None:
    async with scripted(raw(b"")) as changed, scripted(GOOD) as good, worker_at(changed.url, good.url) as worker:
        while engine_of(worker).pool.upstreams[0].breaker.state is not BreakerState.OPEN:  # type: ignore[union-attr]
            await worker.generate(**CHAT)
        changed.models = {"data": [{"id": "m", "owned_by": "vllm"}]}
        asked = len(changed.generations)
        await asyncio.sleep(2.5)
        for _ in range(4):
            assert (await worker.generate(**CHAT)).text == "good"
        assert len(changed.generations) == asked


async def test_upstreams_of_two_kinds_are_refused() -> None:
    async with scripted(GOOD) as one_kind, scripted(GOOD, models={"data": [{"id": "m", "owned_by": "vllm"}]}) as other:
        with pytest.raises(LoadFailed, match="cannot stand for one another"):
            async with worker_at(one_kind.url, other.url):
                pass


async def test_nothing_is_tried_elsewhere_once_it_has_begun() -> None:
    broken = stream(says("some"))
    async with scripted(broken) as bad, scripted(broken) as other, worker_at(bad.url, other.url) as worker:
        with pytest.raises(EngineFailed):
            await worker.generate(**CHAT)
        assert len(bad.generations) + len(other.generations) == 1
