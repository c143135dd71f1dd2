"""The openai client against DB-GPT's own API server, its own controller behind it, and our worker behind both."""

from __future__ import annotations

import openai
import pytest

from dropin.asking import LONGER, PROMPT, chat, check_that_leaving_frees_the_slot, joined
from dropin.conftest import MODEL, Stack, dbgpt_models
from dropin.processes import DBGPT, run_theirs, until

pytestmark = pytest.mark.slow


def test_it_lists_our_model(dbgpt: Stack) -> None:
    assert MODEL in [model.id for model in dbgpt.client.models.list()]


def test_a_chat_is_the_one_that_we_give_ourselves(dbgpt: Stack) -> None:
    theirs, ours = chat(dbgpt.client), chat(dbgpt.direct)
    assert theirs.choices[0].message.content == ours.choices[0].message.content != ""
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    assert theirs.usage.completion_tokens == 16
    assert theirs.choices[0].finish_reason == "length"


def test_a_longer_chat_with_a_system_text(dbgpt: Stack) -> None:
    theirs, ours = chat(dbgpt.client, LONGER), chat(dbgpt.direct, LONGER)
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    assert theirs.choices[0].message.content == ours.choices[0].message.content


def test_a_streamed_chat(dbgpt: Stack) -> None:
    whole = chat(dbgpt.client).choices[0]
    assert joined(chat(dbgpt.client, stream=True)) == (whole.message.content, whole.finish_reason)


def test_stops(dbgpt: Stack) -> None:
    text = chat(dbgpt.client).choices[0].message.content
    stop = text[4:6]
    stopped = chat(dbgpt.client, stop=[stop]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (text[: text.index(stop)], "stop")


def test_a_completion(dbgpt: Stack) -> None:
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    ours = dbgpt.direct.completions.create(**fields)  # type: ignore[call-overload] # all of one type
    theirs = dbgpt.client.completions.create(**fields)  # type: ignore[call-overload] # as above
    assert theirs.choices[0].text == ours.choices[0].text
    chunks = dbgpt.client.completions.create(**fields, stream=True)  # type: ignore[call-overload] # as above
    assert "".join(chunk.choices[0].text for chunk in chunks) == ours.choices[0].text


def test_embeddings(dbgpt: Stack) -> None:
    texts = ["one", "two", "three", "four", "five"]
    theirs, ours = (c.embeddings.create(model=MODEL, input=texts) for c in (dbgpt.client, dbgpt.direct))
    for vector, other in zip(theirs.data, ours.data, strict=True):
        assert vector.embedding == pytest.approx(other.embedding, abs=1e-3)


def test_refusals_come_through_with_their_numbers(dbgpt: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(dbgpt.client, [{"role": "user", "content": "x " * 9000}])
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == 40303


def test_its_own_client_for_workers(dbgpt: Stack) -> None:
    found = run_theirs(DBGPT, "dbgpt_client.py", str(dbgpt.worker.port), MODEL)
    assert found["texts"][-1] == found["whole"] != ""
    assert found["reasons"][-1] == "length"
    assert found["usage"]["completion_tokens"] == 8
    assert found["error"][0] == 40302
    assert "max_new_tokens" in found["error"][1]
    assert (found["count"], found["context_length"], found["system"]) == (4, 8192, True)
    assert found["vectors"] == 2
    assert {"temperature", "max_tokens", "top_p"} <= set(found["parameters"])
    assert found["supported"] == []
    assert "drivetrain" in found["refused"]


def test_a_client_that_leaves_frees_the_slot(dbgpt: Stack) -> None:
    check_that_leaving_frees_the_slot(dbgpt)


def test_a_controller_that_starts_again_knows_it_again(dbgpt: Stack) -> None:
    dbgpt.controller.stop()
    until(lambda: f"{dbgpt.controller.port} is unavailable" in dbgpt.worker.log.read_text(), "nobody noticed")
    dbgpt.controller.start()
    until(lambda: dbgpt_models(dbgpt.controller) == [f"{MODEL}@llm", f"{MODEL}@text2vec"], "it did not register")
    assert chat(dbgpt.client).choices[0].message.content
