"""Chat completions through the official client, on every engine."""

from __future__ import annotations

from typing import Any

import pytest

from server.conftest import can
from server.serving import Served

HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]


def chat(served: Served, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        **{"model": served.model, "messages": HELLO, "max_tokens": 8, "temperature": 0, **fields}
    )


def bad(served: Served, **fields: Any) -> dict[str, Any]:
    return served.refused("/v1/chat/completions", {"model": served.model, "messages": HELLO, **fields})


def test_shape(served: Served) -> None:
    answer = chat(served)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == served.model
    (choice,) = answer.choices
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.logprobs is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_length(served: Served, name: str) -> None:
    fields: dict[str, Any] = {"max_tokens": None, "extra_body": {"ignore_eos": True}, name: 5}
    answer = chat(served, **fields)
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_both_lengths(served: Served) -> None:
    assert chat(served, max_tokens=3, max_completion_tokens=3).usage.completion_tokens == 3
    assert bad(served, max_tokens=3, max_completion_tokens=4)["param"] == "max_tokens"


def test_parts_are_a_string(served: Served) -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    one = chat(served)
    two = chat(served, messages=[{"role": "user", "content": parts}])
    assert one.usage.prompt_tokens == two.usage.prompt_tokens
    assert one.choices[0].message.content == two.choices[0].message.content


def test_an_answer_goes_back_as_the_client_keeps_it(served: Served) -> None:
    kept = chat(served).choices[0].message.model_dump()
    assert kept["tool_calls"] is None
    assert kept["refusal"] is None
    plain = {"role": "assistant", "content": kept["content"]}
    one, two = (chat(served, messages=[*HELLO, said, *HELLO]) for said in (kept, plain))
    assert one.usage.prompt_tokens == two.usage.prompt_tokens
    silent = chat(served, messages=[*HELLO, {**kept, "content": None, "annotations": []}, *HELLO])
    empty = chat(served, messages=[*HELLO, {"role": "assistant", "content": ""}, *HELLO])
    assert silent.usage.prompt_tokens == empty.usage.prompt_tokens


def test_developer_is_system(served: Served) -> None:
    texts = [
        chat(served, messages=[{"role": role, "content": "Be brief"}, *HELLO]).usage.prompt_tokens
        for role in ("developer", "system")
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "Hello",
        [],
        [123],
        [{}],
        [{"role": "wizard", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "video"}]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
        {"role": "user", "content": "x"},
        7,
    ],
)
def test_bad_messages(served: Served, messages: Any) -> None:
    assert bad(served, messages=messages)["param"].startswith("messages")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -2), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", 10**400), ("max_tokens", "5"),
        ("max_tokens", True), ("max_completion_tokens", -2), ("temperature", -0.1), ("temperature", 2.1),
        ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1), ("presence_penalty", 2.1), ("presence_penalty", -2.1),
        ("frequency_penalty", 3), ("n", 0), ("n", 1_000_000), ("n", 1.0), ("seed", 2**70), ("seed", "x"),
        ("stop", ["a", ""]), ("stop", ["a"] * 17), ("stop", 5), ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 101}), ("logit_bias", []), ("top_logprobs", 5), ("logprobs", 3), ("timeout_s", 0),
        ("timeout_s", 1e8), ("overflow", "explode"), ("stream", "yes"), ("stream_options", {"include_usage": True}),
        ("top_k", -2), ("top_k", -1.0), ("min_p", 2), ("repetition_penalty", 0), ("stop_token_ids", [-1]),
        ("min_tokens", -1), ("store", "yes"), ("metadata", "x"), ("verbosity", 5), ("cache_prompt", 1), ("user", 5),
        ("model", 7), ("model", None), ("dry_multiplier", 101), ("dry_base", 0.5), ("dry_allowed_length", 0),
        ("dry_range", -2), ("dry_sequence_breakers", ["x"] * 17), ("dry_sequence_breakers", ["x" * 41]),
        ("xtc_probability", 2), ("xtc_threshold", "low"),
    ],
)  # fmt: skip
def test_bad_values(served: Served, name: str, value: Any) -> None:
    assert bad(served, **{name: value})["param"].startswith(name)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"temperature": NaN}', b"[" * 5000])
def test_bad_json(served: Served, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"):
        served.refused(path, body)


def test_surrogates_and_nan(served: Served) -> None:
    raw = b'{"model": "%s", "messages": [{"role": "user", "content": "\\ud800"}]}' % served.model.encode()
    served.refused("/v1/chat/completions", raw)


def test_top_logprobs_limit(served: Served) -> None:
    assert bad(served, logprobs=True, top_logprobs=21)["param"] == "top_logprobs"


def test_over_context(served: Served) -> None:
    limit = served.worker.capabilities.context_length
    error = bad(served, messages=[{"role": "user", "content": "word " * 2 * limit}])
    assert error["code"] == "context_length_exceeded"
    assert str(limit) in error["message"]
    error = bad(served, max_tokens=limit)
    assert error["code"] == "context_length_exceeded"


def test_logit_bias(served: Served) -> None:
    if not can(served, "logit_bias"):
        assert bad(served, logit_bias={"5": 1})["param"] == "logit_bias"
        return
    answer = chat(served, logit_bias={"100": 100}, max_tokens=3, extra_body={"return_token_ids": True})
    assert answer.choices[0].model_extra["token_ids"] == [100, 100, 100]
    vocabulary = served.worker.metadata.vocab_size
    assert bad(served, logit_bias={str(vocabulary): 1})["param"] == "logit_bias"


def test_seed(served: Served) -> None:
    texts = [
        chat(served, temperature=1, seed=seed, max_tokens=24, extra_body={"ignore_eos": True})
        .choices[0]
        .message.content
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_several_choices(served: Served) -> None:
    answer = chat(served, n=3, temperature=1, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_thinking", False), ("function_call", {"name": "f"}),
        ("skip_special_tokens", False), ("audio", {}),
        ("prediction", {}), ("functions", [{"name": "f"}]), ("best_of", 2), ("constraint", {}),
        ("suffix", "x"), ("logits_processors", ["x"]), ("modalities", ["audio"]), ("nonsense", 1),
        ("prompt", "Hi"), ("echo", True), ("images", []), ("request_id", "x"), ("trace_context", {}),
    ],
)  # fmt: skip
def test_not_built_or_unknown(served: Served, name: str, value: Any) -> None:
    error = bad(served, **{name: value})
    assert error["param"] == name
    assert error["code"] == "unsupported"


def test_what_asks_for_nothing_is_taken(served: Served) -> None:
    fields = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "tools": None, "tool_choice": "none", "response_format": {"type": "text"},
        "modalities": ["text"], "parallel_tool_calls": True, "n": None, "seed": None, "stop": "", "temperature": None,
        "messages": [{"role": "user", "content": "Hi", "name": "me", "whatever": 1}],
        "prompt_cache_retention": "24h", "reasoning_effort": "high", "verbosity": "low", "keep_alive": -1,
        "cache_prompt": True, "skip_special_tokens": True, "top_k": -1, "max_completion_tokens": -1,
    }  # fmt: skip
    for more in ({}, {"store": True, "tool_choice": "auto", "best_of": 1, "keep_alive": "5m"}):
        body = {"model": served.model, "max_tokens": 2, **fields, **more}
        status, headers, document = served.request("POST", "/v1/chat/completions", body)
        assert status == 200, document
        assert "x-drivetrain-ignored" not in headers


def test_token_ids(served: Served) -> None:
    answer = chat(served, max_tokens=4, extra_body={"return_token_ids": True, "ignore_eos": True})
    assert len(answer.choices[0].model_extra["token_ids"]) == 4
    assert len(answer.model_extra["prompt_token_ids"]) == answer.usage.prompt_tokens


def test_logprobs(served: Served) -> None:
    answer = chat(served, max_tokens=4, logprobs=True, top_logprobs=5, extra_body={"ignore_eos": True})
    choice = answer.choices[0]
    entries = choice.logprobs.content
    assert all(len(entry.top_logprobs) == 5 for entry in entries)
    assert all(entry.logprob <= 0 for entry in entries)
    assert all(top.logprob <= 0 and top.bytes is not None for entry in entries for top in entry.top_logprobs)
    joined = b"".join(bytes(entry.bytes) for entry in entries)
    assert joined.decode("utf-8", "ignore").startswith(choice.message.content)


def test_images(served: Served) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    assert bad(served, messages=[{"role": "user", "content": content}])["param"] == "messages"
    bare = [{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]
    assert bad(served, messages=[{"role": "user", "content": bare}])["param"].startswith("messages")
