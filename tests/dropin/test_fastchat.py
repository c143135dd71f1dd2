"""The openai client against FastChat's own API server, its own controller behind it, and our worker behind both."""

from __future__ import annotations

import openai
import pytest

from dropin.asking import LONGER, PROMPT, chat, check_that_leaving_frees_the_slot, joined
from dropin.conftest import MODEL, Stack, fastchat_models
from dropin.processes import ask, until

pytestmark = pytest.mark.slow


def test_it_lists_our_model(fastchat: Stack) -> None:
    assert MODEL in [model.id for model in fastchat.client.models.list()]


def test_a_chat_is_the_one_that_we_give_ourselves(fastchat: Stack) -> None:
    """The same text, of as many prompt tokens: FastChat has rendered it as we do."""
    theirs, ours = chat(fastchat.client), chat(fastchat.direct)
    assert theirs.choices[0].message.content == ours.choices[0].message.content != ""
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    assert theirs.usage.completion_tokens == ours.usage.completion_tokens == 16
    assert theirs.choices[0].finish_reason == ours.choices[0].finish_reason == "length"


def test_a_longer_chat_with_a_system_text(fastchat: Stack) -> None:
    theirs, ours = chat(fastchat.client, LONGER), chat(fastchat.direct, LONGER)
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    assert theirs.choices[0].message.content == ours.choices[0].message.content


def test_a_streamed_chat(fastchat: Stack) -> None:
    whole = chat(fastchat.client).choices[0]
    assert joined(chat(fastchat.client, stream=True)) == (whole.message.content, whole.finish_reason)


def test_several_choices(fastchat: Stack) -> None:
    assert [choice.index for choice in chat(fastchat.client, n=2).choices] == [0, 1]


def test_stops(fastchat: Stack) -> None:
    text = chat(fastchat.client).choices[0].message.content
    stop = text[4:6]
    stopped = chat(fastchat.client, stop=[stop]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (text[: text.index(stop)], "stop")


def test_a_completion_with_echo_and_logprobs(fastchat: Stack) -> None:
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    ours = fastchat.direct.completions.create(**fields, logprobs=1)  # type: ignore[call-overload] # all of one type
    theirs = fastchat.client.completions.create(**fields, logprobs=1)  # type: ignore[call-overload] # as above
    assert theirs.choices[0].text == ours.choices[0].text
    assert theirs.choices[0].logprobs.tokens == ours.choices[0].logprobs.tokens
    echoed = fastchat.client.completions.create(**fields, echo=True)  # type: ignore[call-overload] # as above
    assert echoed.choices[0].text == PROMPT + ours.choices[0].text
    chunks = fastchat.client.completions.create(**fields, stream=True)  # type: ignore[call-overload] # as above
    assert "".join(chunk.choices[0].text for chunk in chunks) == ours.choices[0].text


def test_embeddings(fastchat: Stack) -> None:
    texts = ["one", "two", "three", "four", "five"]
    theirs, ours = (c.embeddings.create(model=MODEL, input=texts) for c in (fastchat.client, fastchat.direct))
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    for vector, other in zip(theirs.data, ours.data, strict=True):
        assert vector.embedding == pytest.approx(other.embedding, abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"use_beam_search": True}, 40302), ({"best_of": 3}, 40302), ({"prompt": "x " * 9000}, 40303)],
)
def test_refusals_come_through_with_their_numbers(fastchat: Stack, fields: dict[str, object], code: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        fastchat.client.completions.create(model=MODEL, prompt="x", max_tokens=4, extra_body=fields)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == code


def test_its_count_of_tokens(fastchat: Stack) -> None:
    url = str(fastchat.client.base_url).replace("/v1/", "/api/v1/token_check")
    prompts = [{"model": MODEL, "prompt": "Once upon a time", "max_tokens": 10}]
    counted = ask(url, {"prompts": prompts})["prompts"][0]
    ours = ask(f"{fastchat.worker.url}/tokenize", {"prompt": "Once upon a time"})
    assert counted == {"fits": True, "tokenCount": ours["count"], "contextLength": ours["max_model_len"]}


def test_a_client_that_leaves_frees_the_slot(fastchat: Stack) -> None:
    check_that_leaving_frees_the_slot(fastchat)


def test_a_controller_that_starts_again_knows_it_again(fastchat: Stack) -> None:
    fastchat.controller.stop()
    until(lambda: "is unavailable" in fastchat.worker.log.read_text(), "nobody noticed")
    assert fastchat.direct.models.list().data
    fastchat.controller.start()
    until(lambda: fastchat_models(fastchat.controller) == [MODEL], "it did not register again")
    assert chat(fastchat.client).choices[0].message.content
