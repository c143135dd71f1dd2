"""What the same seed gives, over HTTP: told by the card, and demanded in every API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from drivetrain.server.parse.body import IGNORED_HEADER
from server.fleet_serving import ServedFleet, fake_offer, serving_fleet
from server.serving import fake, serving

BEST_EFFORT = frozenset({"reproducibility"})
MESSAGES = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[ServedFleet]:
    with serving_fleet(fake_offer("near", script={"unsupported": BEST_EFFORT}), fake_offer("same")) as served:
        for name in ("near", "same"):  # loaded by its first request
            assert served.said(name) == name
        yield served


def test_the_card_says_what_holds(fleet: ServedFleet) -> None:
    for name, holds in (("near", "best_effort"), ("same", "exact")):
        card = fleet.ask("GET", f"/v1/models/{name}")[2]["capabilities"]
        assert card["reproducibility"] == holds
        assert ("reproducibility" in card["parameters"]) is (holds == "exact")


@pytest.mark.parametrize("path", ASKED)
def test_each_api_takes_the_demand_or_says_who_can(fleet: ServedFleet, path: str) -> None:
    for demand in ("exact", "best_effort"):
        body = {**ASKED[path], "model": "same", "reproducibility": demand}
        assert fleet.ask("POST", path, body)[0] == 200, demand
    near = {**ASKED[path], "model": "near"}
    assert fleet.ask("POST", path, {**near, "reproducibility": "best_effort"})[0] == 200
    status, _, answer = fleet.ask("POST", path, {**near, "reproducibility": "exact"})
    assert status == 400
    told = json.dumps(answer)
    assert "reproducibility is not supported by this model" in told
    assert "; same can" in told


def test_nothing_else_can_be_demanded(fleet: ServedFleet) -> None:
    body = {**ASKED["/v1/completions"], "model": "same", "reproducibility": "always"}
    status, _, answer = fleet.ask("POST", "/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "reproducibility")
    assert "exact, best_effort" in answer["error"]["message"]


def test_a_lenient_server_leaves_the_demand_out_and_says_so() -> None:
    with serving(fake(unsupported=BEST_EFFORT), unknown_fields="warn") as lax:
        body = {**ASKED["/v1/completions"], "model": lax.model, "reproducibility": "exact"}
        status, headers, _ = lax.request("POST", "/v1/completions", body)
        assert (status, headers[IGNORED_HEADER]) == (200, "reproducibility")
