"""Both worker protocols over a server with more than one model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer
from drivetrain.scale.fleet.policy import FleetLimits
from drivetrain.server.app import create_app
from drivetrain.server.dropin.codes import ErrorCode
from server.dropin_parts import ROUTES
from server.serving import fake


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with contextlib.AsyncExitStack() as stack:
        workers = {name: await stack.enter_async_context(fake(text=f"I am {name}.")()) for name in ("one", "two")}
        app: Any = create_app(Fleet.of(workers), more_routes=ROUTES)
        transport = httpx.ASGITransport(app=app)
        yield await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"))


async def told(client: httpx.AsyncClient, path: str, body: Any = None) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200
    return answer.json()


async def test_all_are_offered(client: httpx.AsyncClient) -> None:
    assert (await told(client, "/worker_get_status"))["model_names"] == ["one", "two"]


@pytest.mark.parametrize("model", ["one", "two"])
async def test_each_answers_to_its_name(client: httpx.AsyncClient, model: str) -> None:
    asked = {"model": model, "prompt": "x", "echo": False, "temperature": 0}
    assert (await told(client, "/worker_generate", asked))["text"] == f"I am {model}."
    output = await told(client, "/api/worker/generate", asked)
    assert output["content"]["object"]["data"] == f"I am {model}."
    assert (await told(client, "/api/worker/model_metadata", {"model": model}))["model"] == model


async def test_a_look_loads_nothing() -> None:
    """A `GET` can come from any page: it must put no model in the place of another."""
    async with contextlib.AsyncExitStack() as stack:

        async def load(progress: Any) -> Any:
            return await stack.enter_async_context(fake()())

        fleet = Fleet([Offer(name="one", open=load), Offer(name="two", open=load)], FleetLimits(max_loaded=1))
        await fleet.start()
        stack.push_async_callback(fleet.stop)
        loaded = [member.name for member in fleet.members if member.worker is not None]
        assert len(loaded) == 1
        app: Any = create_app(fleet, more_routes=ROUTES)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            path = "/api/worker/parameter/descriptions"
            answers = {name: await client.get(path, params={"model": name}) for name in ("one", "two")}
        assert [name for name, answer in answers.items() if answer.status_code == 200] == loaded
        assert sorted(answer.status_code for answer in answers.values()) == [200, 503]
        assert [member.name for member in fleet.members if member.worker is not None] == loaded


async def test_one_must_be_named(client: httpx.AsyncClient) -> None:
    assert (await told(client, "/worker_generate", {"prompt": "x"}))["error_code"] == ErrorCode.INVALID_MODEL
    assert (await told(client, "/count_token", {"prompt": "x"}))["error_code"] == ErrorCode.INVALID_MODEL
    assert (await client.post("/api/worker/count_token", json={"prompt": "x"})).status_code == 404
