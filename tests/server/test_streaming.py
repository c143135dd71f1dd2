"""Server-sent events: their order, and that they say what the whole answer says."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from server.serving import Served, fake, serving

HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
CHAT = "/v1/chat/completions"


def body(served: Served, **fields: Any) -> dict[str, Any]:
    return {"model": served.model, "messages": HELLO, "max_tokens": 12, "temperature": 0, **fields}


def test_order(served: Served) -> None:
    *chunks, done = served.events(CHAT, body(served))
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    for name in ("id", "model", "created", "object"):
        assert len({chunk[name] for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert [r for r in reasons if r] == [reasons[-1]]
    assert all("usage" not in chunk for chunk in chunks)


def test_the_stream_is_the_answer(served: Served) -> None:
    whole = served.client.chat.completions.create(**body(served))
    stream = served.client.chat.completions.create(**body(served), stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content


def test_usage(served: Served) -> None:
    *chunks, done = served.events(CHAT, body(served, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    last = chunks.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 12
    assert all(chunk["usage"] is None for chunk in chunks)


def test_several_choices(served: Served) -> None:
    *chunks, _ = served.events(CHAT, body(served, n=3, temperature=1, seed=1))
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [bool(c["finish_reason"]) for c in mine].count(True) == 1
    whole = served.client.chat.completions.create(**body(served, n=3, temperature=1, seed=1))
    texts = [
        "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"][0]["index"] == index)
        for index in range(3)
    ]
    assert all(texts)
    if served.worker.metadata.engine != "llamacpp":  # its kernels round by the company in the batch
        assert texts == [choice.message.content for choice in whole.choices]


def test_logprobs_and_ids(served: Served) -> None:
    asked = body(served, logprobs=True, top_logprobs=2, return_token_ids=True)
    *chunks, _ = served.events(CHAT, asked)
    _, whole = served.post(CHAT, asked)
    entries = [e for c in chunks if (lp := c["choices"][0]["logprobs"]) for e in lp["content"]]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    ids = [i for c in chunks for i in c["choices"][0].get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"] == [entry["id"] for entry in entries]
    for entry in entries:
        assert [top["id"] for top in entry["top_logprobs"] if top["bytes"] == entry["bytes"]] in ([], [entry["id"]])
    _, plain = served.post(CHAT, body(served, logprobs=True, top_logprobs=2))
    assert not any("id" in entry for entry in plain["choices"][0]["logprobs"]["content"])
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 9}, {"messages": []}, {"max_tokens": 10**6}, {"nonsense": 1}, {"model": "nobody"}],
)
def test_an_invalid_request_is_refused_before_any_event(served: Served, fields: dict[str, Any]) -> None:
    status, headers, _ = served.request("POST", CHAT, {**body(served), **fields, "stream": True})
    assert status in {400, 404}
    assert headers["content-type"] == "application/json"


def test_leaving_early_frees_the_slot(served: Served) -> None:
    fields = body(served, max_tokens=200, ignore_eos=True)
    extra = {"ignore_eos": fields.pop("ignore_eos")}
    stream = served.client.chat.completions.create(**fields, stream=True, extra_body=extra)
    next(iter(stream))
    assert served.worker.status.running == 1
    stream.close()
    began = time.monotonic()
    served.settle(5)
    assert time.monotonic() - began < 4
    served.works()


def test_leaving_a_request_that_is_not_streamed(served: Served) -> None:
    fields = body(served, max_tokens=200)
    with pytest.raises(openai.APITimeoutError):
        served.client.with_options(timeout=0.05).chat.completions.create(**fields, extra_body={"ignore_eos": True})
    served.settle(5)
    served.works()


@pytest.mark.parametrize("text", ["🌍🎉你好, wörld! ", "👩‍👩‍👧‍👦 семья ", "क्षत्रिय "])
def test_characters_are_never_split(text: str) -> None:
    with serving(fake(text=text)) as served:
        *chunks, _ = served.events(CHAT, body(served, max_tokens=500))
        pieces = [c["choices"][0]["delta"].get("content", "") for c in chunks]
        assert "".join(pieces) == text
        assert all("\ufffd" not in piece for piece in pieces)


def test_control_characters_and_line_separators() -> None:
    text = 'a"b\\c\n\r\n\t\u2028\u2029\x00\x1f data: [DONE]\n\n'
    with serving(fake(text=text)) as served:
        *chunks, done = served.events(CHAT, body(served, max_tokens=500))
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text
        assert done == "[DONE]"


def test_a_failure_in_mid_stream() -> None:
    with serving(fake(repeat=True, step_delay_s=0.1, fault=RuntimeError("secret /path"), fault_at_step=3)) as served:
        *chunks, error, done = served.events(CHAT, body(served))
        assert done == "[DONE]"
        assert error["error"]["code"] == "engine_error"
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        with pytest.raises(openai.APIError):
            list(served.client.chat.completions.create(**body(served), stream=True))
        with pytest.raises(openai.InternalServerError):
            served.client.chat.completions.create(**body(served))


def test_a_failure_before_the_first_token_has_a_status() -> None:
    with serving(fake(fault=RuntimeError("no"))) as served:
        assert served.refused(CHAT, body(served, stream=True), 500)["code"] == "engine_error"
    with serving(fake(no_output=True)) as served:
        assert served.refused(CHAT, body(served, stream=True), 500)["code"] == "engine_error"


def test_deadline() -> None:
    with serving(fake(repeat=True, first_delay_s=30)) as served:
        for stream in (True, False):
            error = served.refused(CHAT, body(served, timeout_s=0.2, stream=stream), 504)
            assert error["code"] == "deadline_exceeded"
    with serving(fake(repeat=True, step_delay_s=0.05)) as served:
        *_, error, done = served.events(CHAT, body(served, timeout_s=0.3, max_tokens=1000))
        assert error["error"]["code"] == "deadline_exceeded"
        assert done == "[DONE]"


def test_the_first_token_is_not_held_back() -> None:
    with serving(fake(repeat=True, step_delay_s=0.2)) as served:
        began = time.monotonic()
        stream = served.client.chat.completions.create(**body(served, max_tokens=20), stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        assert time.monotonic() - began < 3, "the whole answer takes four seconds"
        stream.close()


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": HELLO}), ("/v1/completions", {"prompt": "x"})])
def test_each_chunk_tells_the_usage_so_far_where_that_is_asked_for(path: str, asked: dict[str, Any]) -> None:
    with serving(fake(text="abcdef", repeat=True)) as one:
        body = {"model": "fake", **asked, "max_tokens": 5, "stream_options": {"include_usage": True}}
        body["stream_options"]["continuous_usage_stats"] = True
        *chunks, done = one.events(path, body)
        assert done == "[DONE]"
        told = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
        assert told == sorted(told)
        assert told[-1] == 5
        assert set(range(1, 6)) <= set(told)
        assert chunks[-1]["usage"]["completion_tokens"] == 5
        assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


def test_a_list_of_prompts_is_held_back_and_not_taken_for_one_that_nobody_reads() -> None:
    """One after the other in one slot: what the first ones say waits for the head, which waits for the last one.

    That takes 2.4 s, far longer than a reader may; the client itself never takes so long, on a busy machine either.
    """
    settings = {"max_running": 1, "max_unread": 20, "reader_timeout_s": 1.5}
    with serving(fake(settings, repeat=True, step_delay_s=0.006)) as one:
        prompts = [f"prompt {i}" for i in range(5)]
        body = {"model": "fake", "prompt": prompts, "max_tokens": 100, "ignore_eos": True}
        *chunks, done = one.events("/v1/completions", body)
        assert done == "[DONE]"
        reasons = [
            choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]
        ]
        assert reasons == ["length"] * 5
