"""All of it on Ray Serve: the official client through Serve's proxy, a death, more and fewer replicas, an update."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from ray import serve

from drivetrain.scale.ray.plan import APPLICATION
from on_ray import deployed
from on_ray.deployed import MODEL, QUESTION, both_replicas, check_answers, plan, streamed, until_so

STREAMS = 16


@pytest.fixture(scope="module")
def port(ray_here: int) -> Iterator[int]:
    deployed.deploy(ray_here, plan(min_replicas=2, max_replicas=2))
    yield ray_here
    serve.delete(APPLICATION)


@pytest.fixture
async def of(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    async with deployed.client(port) as made:
        yield made


async def test_what_serve_says_is_said_here_too(port: int, of: openai.AsyncOpenAI) -> None:
    await check_answers(of)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as plain:
        assert (await plain.get("/ready")).status_code == 200
        assert (await plain.get("/health")).status_code == 200
        assert "drivetrain_requests_running" in (await plain.get("/metrics")).text


async def test_several_prompts_in_one_request(port: int, of: openai.AsyncOpenAI) -> None:
    """Their calls share what Serve takes for the id of a request."""
    prompts = [f"The number {number} is" for number in range(6)]
    answer = await of.completions.create(model=MODEL, prompt=prompts, max_tokens=4, extra_body={"ignore_eos": True})
    assert len(answer.choices) == len(prompts)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * len(prompts)


async def test_what_begins_alike_goes_to_the_replica_that_has_seen_it(port: int, of: openai.AsyncOpenAI) -> None:
    """With two replicas and chance alone, all seven would hit in one of 128 runs."""
    beginning = "All happy families are alike; every unhappy family is unhappy in its own way. " * 12
    cached = []
    for number in range(8):
        answer = await of.completions.create(model=MODEL, prompt=f"{beginning}{number}", max_tokens=2)
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        cached.append(details.cached_tokens if details is not None else 0)
    assert not cached[0]
    assert all(tokens and tokens > 100 for tokens in cached[1:])


async def test_a_client_that_leaves_ends_its_request(port: int, of: openai.AsyncOpenAI) -> None:
    answer: Any = await of.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in answer:
        break
    await answer.close()
    await until_so(port, lambda status: not status["running"] and bool(status["endings"].get("cancelled")))


async def test_a_replica_that_is_killed_under_streams(port: int, of: openai.AsyncOpenAI) -> None:
    await deployed.until(lambda: len(deployed.replica_pids()) == 2)
    before = deployed.replica_pids()
    running = [asyncio.create_task(streamed(of, 150)) for _ in range(STREAMS)]
    await until_so(port, both_replicas)
    os.kill(before[0], signal.SIGKILL)
    endings = [ending for _, ending in await asyncio.gather(*running)]
    assert set(endings) == {"length", "engine_error"}
    assert (await streamed(of, 10))[1] == "length"
    await deployed.until(lambda: deployed.num_running() == 2 and len(deployed.replica_pids()) == 2)
    assert before[0] not in deployed.replica_pids()
    after = await asyncio.gather(*(streamed(of, 10) for _ in range(STREAMS)))
    assert {ending for _, ending in after} == {"length"}


async def asked_until(done: asyncio.Event, of: openai.AsyncOpenAI) -> list[str]:
    """One answer after another; how each ended."""
    endings = []
    while not done.is_set():
        endings.append((await streamed(of, 30))[1])
    return endings


async def test_a_rolling_update_loses_no_request(port: int, of: openai.AsyncOpenAI) -> None:
    before = deployed.replica_pids()
    done = asyncio.Event()
    asking = [asyncio.create_task(asked_until(done, of)) for _ in range(4)]
    await asyncio.sleep(1)
    changed = plan(min_replicas=2, max_replicas=2, settings={"context_length": 512})
    await asyncio.to_thread(deployed.deploy, port, changed)
    await deployed.until(lambda: not set(before) & set(deployed.replica_pids()))
    await asyncio.sleep(1)
    done.set()
    endings = [ending for of_one in await asyncio.gather(*asking) for ending in of_one]
    assert len(endings) > 8
    assert set(endings) == {"length"}
    with pytest.raises(openai.BadRequestError) as caught:
        await of.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=800)
    assert caught.value.code == "context_length_exceeded"


async def test_replicas_follow_the_load(port: int, of: openai.AsyncOpenAI) -> None:
    scaled = plan(min_replicas=1, max_replicas=2, target_ongoing=2.0)
    await asyncio.to_thread(deployed.deploy, port, scaled)
    await deployed.until(lambda: deployed.num_running() == 1)
    enough = asyncio.Event()
    load = [asyncio.create_task(asked_until(enough, of)) for _ in range(8)]
    await deployed.until(lambda: deployed.num_running() == 2)
    enough.set()
    assert {ending for endings in await asyncio.gather(*load) for ending in endings} == {"length"}
    await deployed.until(lambda: deployed.num_running() == 1)
    assert (await streamed(of, 5))[1] == "length"


async def test_more_than_may_wait_is_refused_with_a_time_to_come_back(port: int, of: openai.AsyncOpenAI) -> None:
    small = plan(max_ongoing=2, max_queued=2)
    await asyncio.to_thread(deployed.deploy, port, small)
    await deployed.until(lambda: deployed.num_running() == 1 and len(deployed.replica_pids()) == 1)
    await streamed(of, 2)

    async def one() -> openai.APIStatusError | None:
        try:
            await of.chat.completions.create(
                model=MODEL, messages=QUESTION, max_tokens=60, extra_body={"ignore_eos": True}
            )
        except openai.APIStatusError as exc:
            return exc
        return None

    refused = [error for error in await asyncio.gather(*(one() for _ in range(12))) if error is not None]
    assert 4 <= len(refused) <= 10
    for error in refused:
        assert error.status_code == 429
        assert error.code == "overloaded"
        assert int(error.response.headers["retry-after"]) >= 1
