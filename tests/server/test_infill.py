"""A suffix over HTTP: with the official client, as Ollama's clients send it, and where a model cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract.filling import FillingBytes
from drivetrain.server.parse.body import IGNORED_HEADER
from server.conftest import can
from server.fleet_serving import fake_offer, serving_fleet
from server.serving import Served, fake, filling, serving
from tiny.causal import INFILL

GENERATE = "/api/generate"
GAP = {"prompt": "def add(a, b):\n    return ", "suffix": "\n"}
IDS = [256, 261, *GAP["prompt"].encode(), 262, *GAP["suffix"].encode(), 263]
"""What the model reads: its tokens in their order, with the two texts."""


@pytest.fixture(scope="module")
def filler() -> Iterator[Served]:
    with serving(filling(text="a + b")) as made:
        yield made
        made.settle()


def test_the_official_client(filler: Served) -> None:
    asked: dict[str, Any] = {"model": filler.model, **GAP, "max_tokens": 20, "temperature": 0}
    answer = filler.client.completions.create(**asked, extra_body={"return_token_ids": True})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a + b", "stop")
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["prompt_token_ids"] == IDS
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(IDS)
    stream = filler.client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "a + b"


def test_each_prompt_of_a_list_has_it(filler: Served) -> None:
    body = {"model": filler.model, "prompt": ["a", "bb"], "suffix": "c", "return_token_ids": True}
    status, answer = filler.post("/v1/completions", body)
    assert status == 200
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [
        [256, 261, *text, 262, *b"c", 263] for text in (b"a", b"bb")
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": 5}, "suffix"), ({"suffix": ["a"]}, "suffix"), ({"prompt": [65]}, "suffix"),
        ({"echo": True}, "echo"), ({"overflow": "truncate_left"}, "overflow"), ({"prompt": "x" * 9000}, "prompt"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it(filler: Served, fields: dict[str, Any], param: str) -> None:
    assert filler.refused("/v1/completions", {"model": filler.model, **GAP, **fields})["param"] == param


def test_a_chat_has_none(filler: Served) -> None:
    body = {"model": filler.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    error = filler.refused("/v1/chat/completions", {**body, "suffix": "b"})
    assert error["param"] == "suffix"
    assert "/v1/completions" in error["message"]
    assert filler.post("/v1/chat/completions", {**body, "suffix": ""})[0] == 200


def test_the_card_says_so(filler: Served, fake_server: Served) -> None:
    for served, has in ((filler, True), (fake_server, False)):
        card = json.loads(served.request("GET", f"/v1/models/{served.model}")[2])["capabilities"]
        assert card["infill"] is has
        assert can(served, "suffix") is has
        _, shown = served.post("/api/show", {"model": served.model})
        assert ("insert" in shown["capabilities"]) is has


def test_tokenize(filler: Served) -> None:
    assert filler.post("/tokenize", {"model": filler.model, **GAP})[1]["tokens"] == IDS
    messages = [{"role": "user", "content": "Hi"}]
    assert filler.refused("/tokenize", {"messages": messages, "suffix": "b"})["param"] == "suffix"
    card = json.loads(filler.request("GET", f"/v1/models/{filler.model}")[2])["capabilities"]
    assert card["infill_tokens"] == dict(zip(INFILL, range(261, 265), strict=True))


def test_ollamas_clients(filler: Served) -> None:
    whole = filler.post(GENERATE, {"model": filler.model, **GAP, "stream": False, "options": {"temperature": 0}})[1]
    assert (whole["response"], whole["done_reason"]) == ("a + b", "stop")
    assert whole["prompt_eval_count"] == len(IDS)
    start = filler.post(GENERATE, {"model": filler.model, "suffix": "x", "stream": False})[1]
    assert start["prompt_eval_count"] == 5
    error = filler.post(GENERATE, {"model": filler.model, **GAP, "truncate": True})[1]
    assert error["param"] == "truncate"


def test_a_lenient_server_leaves_it_out_and_says_so() -> None:
    with serving(fake(), unknown_fields="warn") as lax:
        status, headers, _ = lax.request("POST", "/v1/completions", {"model": lax.model, **GAP, "max_tokens": 1})
        assert (status, headers[IGNORED_HEADER]) == (200, "suffix")


def test_a_model_that_cannot_names_one_that_can() -> None:
    offers = [fake_offer("plain"), fake_offer("coder", tokenizer=FillingBytes())]
    with serving_fleet(*offers) as served:
        assert served.said("plain") == "plain"
        error = served.complete("plain", suffix="b")[2]["error"]
        assert (error["param"], error["code"]) == ("suffix", "unsupported")
        assert error["message"].endswith("; coder can")
        assert served.said("coder", suffix="b") == "coder"


def test_where_none_can(fake_server: Served) -> None:
    error = fake_server.refused("/v1/completions", {"model": fake_server.model, **GAP})
    assert (error["param"], error["code"]) == ("suffix", "unsupported")
    assert error["message"].endswith("none of the models that are loaded here can")
