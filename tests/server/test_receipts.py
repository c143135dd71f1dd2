"""Receipts over HTTP: in whole answers and at the end of streams, by a field or a header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivetrain.core.sealing import ids_sha256, opened
from server.serving import Served, fake, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body(served: Served, **fields: Any) -> dict[str, Any]:
    return {"model": served.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, **fields}


def test_an_answer_has_one_if_it_was_asked_for(served: Served) -> None:
    status, answer = served.post(CHAT, body(served, receipt=True, return_token_ids=True))
    assert status == 200
    receipt, _ = opened(answer["receipt"])
    assert receipt.request_id == answer["id"]
    assert list(receipt.choices[0].token_ids) == answer["choices"][0]["token_ids"]
    assert receipt.choices[0].finish_reason == answer["choices"][0]["finish_reason"]
    assert receipt.prompt.sha256 == ids_sha256(answer["prompt_token_ids"])
    for fields in ({}, {"receipt": False}, {"receipt": None}):
        assert "receipt" not in served.post(CHAT, body(served, **fields))[1]


def test_a_stream_has_it_in_a_chunk_before_its_end(served: Served) -> None:
    for more in ({}, {"stream_options": {"include_usage": True}}):
        events = served.events(CHAT, body(served, receipt="full", **more))
        assert events[-1] == "[DONE]"
        place = -3 if more else -2
        chunk = events[place]
        assert chunk["choices"] == []
        assert chunk["object"] == "chat.completion.chunk"
        receipt, _ = opened(chunk["receipt"])
        assert receipt.request_id == chunk["id"]
        assert receipt.is_replayable
        assert not any("receipt" in event for event in events[:-1] if event is not chunk)


def test_the_official_client_reads_it(served: Served) -> None:
    asked = {**body(served), "extra_body": {"receipt": True}}
    whole = served.client.chat.completions.create(**asked)
    receipt, _ = opened(whole.model_extra["receipt"])
    chunks = list(served.client.chat.completions.create(**asked, stream=True))
    (told,) = [chunk.model_extra["receipt"] for chunk in chunks if chunk.model_extra]
    assert opened(told)[0].prompt == receipt.prompt


def test_several_prompts_have_one_each(served: Served) -> None:
    asked = {"model": served.model, "prompt": ["Once", "Twice upon"], "max_tokens": 2, "receipt": "full"}
    _, answer = served.post(COMPLETIONS, asked)
    assert "receipt" not in answer
    receipts = [opened(found)[0] for found in answer["receipts"]]
    assert [receipt.request_id for receipt in receipts] == [f"{answer['id']}-0", f"{answer['id']}-1"]
    assert receipts[0].prompt.ids != receipts[1].prompt.ids
    told = [event["receipt"] for event in served.events(COMPLETIONS, asked)[:-1] if "receipt" in event]
    assert {opened(found)[0].prompt.sha256 for found in told} == {receipt.prompt.sha256 for receipt in receipts}


@pytest.mark.parametrize(("value", "full"), [("1", False), ("true", False), ("FULL", True), ("0", None), ("", None)])
def test_a_header_asks_too(served: Served, value: str, full: bool | None) -> None:
    status, answer = served.post(CHAT, body(served), {"x-drivetrain-receipt": value})
    assert status == 200
    assert ("receipt" in answer) is (full is not None)
    if full is not None:
        assert opened(answer["receipt"])[0].is_replayable is full


def test_the_field_comes_before_the_header(served: Served) -> None:
    _, answer = served.post(CHAT, body(served, receipt="full"), {"x-drivetrain-receipt": "1"})
    assert opened(answer["receipt"])[0].is_replayable


@pytest.mark.parametrize("value", ["ids", 1, "", [], {"full": True}])
def test_another_value_is_refused_by_name(served: Served, value: Any) -> None:
    assert served.refused(CHAT, body(served, receipt=value))["param"] == "receipt"


def test_another_header_is_refused_by_name(served: Served) -> None:
    status, _, data = served.request("POST", CHAT, body(served), {"x-drivetrain-receipt": "yes, please"})
    assert status == 400
    assert json.loads(data)["error"]["param"] == "x-drivetrain-receipt"


def test_it_names_what_a_lenient_server_left_out() -> None:
    with serving(fake(), unknown_fields="warn") as served:
        asked = body(served, receipt=True, made_up=1, top_p=0.5)
        status, headers, data = served.request("POST", CHAT, asked)
        assert status == 200
        receipt, _ = opened(json.loads(data)["receipt"])
        assert receipt.ignored == ("made_up", "top_p")
        assert headers["x-drivetrain-ignored"] == "made_up, top_p"
        assert opened(served.post(CHAT, body(served, receipt=True))[1]["receipt"])[0].ignored == ()


def test_the_documents_tell_of_it(served: Served) -> None:
    _, card = served.request("GET", f"/v1/models/{served.model}")[::2]
    assert json.loads(card)["capabilities"]["parameters"]["receipt"]["endpoints"] == ["chat", "completions"]
    _, _, data = served.request("GET", "/openapi.json")
    schemas = json.loads(data)["components"]["schemas"]
    assert "full" in json.dumps(schemas["ChatBody"]["properties"]["receipt"])
    _, answer = served.post(CHAT, body(served, receipt=True))
    assert set(answer["receipt"]) <= set(schemas["Receipt"]["properties"])
    assert set(schemas["Receipt"]["required"]) <= set(answer["receipt"])
