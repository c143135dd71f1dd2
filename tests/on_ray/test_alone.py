"""`drivetrain deploy` with a private Ray: a process that answers, loses clients and replicas, and is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from on_ray.deployed import (
    MODEL,
    PATIENT_S,
    QUESTION,
    SLOTS,
    both_replicas,
    check_answers,
    client,
    free_port,
    plan,
    replica_pids,
    streamed,
    until,
    until_so,
)

APPLICATION = plan().deployment
STREAMS = 16

Process = subprocess.Popen[bytes]


@contextlib.contextmanager
def deployed(folder: Path, model: str, *more: str) -> Iterator[tuple[Process, int]]:
    """`drivetrain deploy`, and its port. What it says is in the folder's `out`."""
    port = free_port()
    flags = ["--port", str(port), "--num-cpus", "0", "--slots", str(SLOTS), "--threads", "1", *more]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "drivetrain", "deploy", model, *flags], stdout=out, stderr=out
        )
        try:
            yield process, port
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENT_S)
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def two(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with two replicas."""
    with deployed(tmp_path_factory.mktemp("two"), MODEL, "--replicas", "2") as (process, port):
        asyncio.run(until_ready(process, port))
        yield port


@pytest.fixture
async def of(two: int) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(two) as made:
        yield made


async def until_ready(process: Process, port: int) -> None:
    async with asyncio.timeout(PATIENT_S), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as plain:
        while True:
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                if (await plain.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.3)


def all_of_them(status_now: dict[str, Any]) -> bool:
    """Most run; some may wait in the replica that the router prefers, as its slots are fewer."""
    num: int = status_now["running"] + status_now["waiting"]
    return num == STREAMS and both_replicas(status_now)


async def test_it_answers_as_serve_does(of: openai.AsyncOpenAI) -> None:
    await check_answers(of)


async def test_both_replicas_work_and_what_is_left_ends(two: int, of: openai.AsyncOpenAI) -> None:
    await until(lambda: len(replica_pids(APPLICATION)) == 2)
    answers = [
        await of.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        for _ in range(STREAMS)
    ]
    await until_so(two, all_of_them)
    for answer in answers:
        await answer.close()
    await until_so(
        two, lambda status_now: not status_now["running"] and status_now["endings"].get("cancelled") == STREAMS
    )


async def test_a_replica_that_is_killed_under_streams(two: int, of: openai.AsyncOpenAI) -> None:
    await until(lambda: len(replica_pids(APPLICATION)) == 2)
    before = replica_pids(APPLICATION)
    running = [asyncio.create_task(streamed(of, 150)) for _ in range(STREAMS)]
    await until_so(two, both_replicas)
    os.kill(before[0], signal.SIGKILL)
    assert {ending for _, ending in await asyncio.gather(*running)} == {"length", "engine_error"}
    assert (await streamed(of, 10))[1] == "length"
    await until(lambda: len(replica_pids(APPLICATION)) == 2 and before[0] not in replica_pids(APPLICATION))


async def test_ctrl_c_lets_what_runs_end(smollm2: str, tmp_path: Path) -> None:
    with deployed(tmp_path, MODEL, "--drain-s", str(PATIENT_S)) as (process, port):
        await until_ready(process, port)
        async with client(port) as of:
            await ended_by_ctrl_c(process, port, of)


async def ended_by_ctrl_c(process: Process, port: int, of: openai.AsyncOpenAI) -> None:
    running = [asyncio.create_task(streamed(of, 120)) for _ in range(4)]
    await until_so(port, lambda status_now: status_now["running"] == len(running))
    assert not any(stream.done() for stream in running)
    process.send_signal(signal.SIGINT)
    assert {ending for _, ending in await asyncio.gather(*running)} == {"length"}
    assert await asyncio.to_thread(process.wait) == 0


async def test_ctrl_c_while_it_starts_ends_it(smollm2: str, tmp_path: Path) -> None:
    with deployed(tmp_path, MODEL) as (process, port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as plain:
            async with asyncio.timeout(PATIENT_S):
                while True:
                    assert process.poll() is None
                    with contextlib.suppress(httpx.TransportError):
                        assert (await plain.get("/ready")).status_code == 503
                        break
                    await asyncio.sleep(0.1)
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENT_S):
                assert await asyncio.to_thread(process.wait) == 0
            with pytest.raises(httpx.TransportError):
                await plain.get("/ready")


async def test_a_model_that_no_replica_can_load_is_told_with_the_reason(tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    with deployed(tmp_path, str(model)) as (process, _):
        async with asyncio.timeout(PATIENT_S):
            assert await asyncio.to_thread(process.wait) == 1
    (line,) = [text for text in (tmp_path / "out").read_text().splitlines() if text.startswith("drivetrain:")]
    assert "model-broken could not be started: the GGUF file holds no vocabulary" in line
