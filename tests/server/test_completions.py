"""Text completions: prompts in every form, echo, logprobs, routing by index."""

from __future__ import annotations

from typing import Any

import pytest

from server.conftest import can
from server.serving import Served, fake, serving

PATH = "/v1/completions"


def complete(served: Served, **fields: Any) -> Any:
    body = {"model": served.model, "prompt": "Once upon", "max_tokens": 6, "temperature": 0, **fields}
    return served.client.completions.create(**body)


def rounds_alike(served: Served) -> bool:
    """llama.cpp's kernels round by the company that a request is in, so what runs side by side may say other words."""
    return served.worker.metadata.engine != "llamacpp"


def bad(served: Served, **fields: Any) -> dict[str, Any]:
    return served.refused(PATH, {"model": served.model, "prompt": "Once upon", "max_tokens": 4, **fields})


def ids(served: Served, text: str) -> list[int]:
    _, document = served.post("/tokenize", {"prompt": text})
    tokens: list[int] = document["tokens"]
    return tokens


def test_shape(served: Served) -> None:
    answer = complete(served, extra_body={"ignore_eos": True})
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage.completion_tokens == 6


def test_the_default_length_is_16(served: Served) -> None:
    answer = complete(served, max_tokens=None, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_ids_are_a_string(served: Served) -> None:
    by_text = complete(served)
    by_ids = complete(served, prompt=ids(served, "Once upon"))
    extra = complete(served, prompt=None, extra_body={"prompt_token_ids": ids(served, "Once upon")})
    assert by_text.choices[0].text == by_ids.choices[0].text == extra.choices[0].text
    assert by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens


def test_another_salt_shares_no_beginning(served: Served) -> None:
    if not can(served, "cache_salt"):
        assert bad(served, cache_salt="a tenant")["param"] == "cache_salt"
        return
    prompt = "This beginning is what two tenants have in common. " * 5

    def cached(**salt: str) -> int:
        usage = complete(served, prompt=prompt, max_tokens=1, extra_body=salt).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    found = [cached(), cached(cache_salt="one"), cached(cache_salt="another"), cached(cache_salt="one"), cached()]
    assert found[:3] == [0, 0, 0]
    shares = served.worker.metadata.engine in {"native", "llamacpp"}
    assert all(count > 32 for count in found[3:]) if shares else found[3:] == [0, 0]
    assert bad(served, cache_salt="")["param"] == "cache_salt"


def test_prompt_major_order(served: Served) -> None:
    prompts = ["One", "Two two"]
    fields: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 4, "echo": True, "extra_body": {"ignore_eos": True}}
    answer = complete(served, prompt=prompts, **fields)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [c.text.startswith(prompts[c.index // 2]) for c in answer.choices] == [True] * 4
    alone = [complete(served, prompt=prompt, **fields) for prompt in prompts]
    if rounds_alike(served):
        assert [c.text for c in answer.choices] == [c.text for a in alone for c in a.choices]
    assert answer.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)
    assert answer.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)


def test_lists_of_ids(served: Served) -> None:
    lists = [ids(served, "One"), ids(served, "Two two")]
    by_ids = complete(served, prompt=lists)
    by_text = complete(served, prompt=["One", "Two two"])
    assert by_ids.usage.prompt_tokens == by_text.usage.prompt_tokens == sum(map(len, lists))
    if rounds_alike(served):
        assert [c.text for c in by_ids.choices] == [c.text for c in by_text.choices]


def test_streamed_lists_route_by_index(served: Served) -> None:
    prompts = ["One", "Two two", "Three"]
    fields: dict[str, Any] = {"prompt": prompts, "n": 2, "temperature": 1, "seed": 4, "echo": True}
    fields["extra_body"] = {"ignore_eos": True}
    whole = complete(served, **fields)
    texts = [""] * 6
    reasons: list[Any] = [None] * 6
    usage: Any = None
    for chunk in complete(served, **fields, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            assert reasons[choice.index] is None
            reasons[choice.index] = choice.finish_reason
        usage = chunk.usage or usage
    assert [text.startswith(prompts[i // 2]) for i, text in enumerate(texts)] == [True] * 6
    if rounds_alike(served):
        assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage.total_tokens == whole.usage.total_tokens


def test_one_bad_prompt_of_a_streamed_list(served: Served) -> None:
    limit = served.worker.capabilities.context_length
    error = bad(served, prompt=["fine", "word " * limit * 2, "fine"], stream=True)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    served.settle(5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", None), ("prompt", []), ("prompt", [[]]), ("prompt", 5),
        ("prompt", ["a", 1]), ("prompt", [1, "a"]), ("prompt", [-1]), ("prompt", [10**9]), ("prompt", [[1], []]),
        ("prompt", ["a"] * 65), ("prompt_token_ids", []), ("prompt_token_ids", [1]), ("suffix", "end"),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("best_of", 3), ("echo", "yes"), ("messages", []),
    ],
)  # fmt: skip
def test_bad_values(served: Served, name: str, value: Any) -> None:
    assert bad(served, **{name: value})["param"].startswith(name)


def test_best_of_the_same_number_asks_for_nothing(served: Served) -> None:
    assert complete(served, best_of=1).choices[0].text == complete(served).choices[0].text


def test_echo(served: Served) -> None:
    plain = complete(served)
    echoed = complete(served, echo=True)
    assert echoed.choices[0].text == "Once upon" + plain.choices[0].text
    assert echoed.usage == plain.usage
    alone = complete(served, echo=True, max_tokens=0)
    assert alone.choices[0].text == "Once upon"
    assert alone.usage.completion_tokens == 0
    streamed = "".join(c.choices[0].text for c in complete(served, echo=True, stream=True))
    assert streamed == echoed.choices[0].text
    assert bad(served, max_tokens=0)["param"] == "max_tokens"


def test_logprobs(served: Served) -> None:
    answer = complete(served, logprobs=3, extra_body={"ignore_eos": True})
    found = answer.choices[0].logprobs
    count = len(found.tokens)
    assert count == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    assert all(value <= 0 for value in found.token_logprobs)
    assert all(3 <= len(top) <= 4 for top in found.top_logprobs)
    assert found.text_offset[0] == 0


def test_logprobs_of_the_chosen_alone(served: Served) -> None:
    found = complete(served, logprobs=0).choices[0].logprobs
    assert [list(top) for top in found.top_logprobs] == [[token] for token in found.tokens]


def test_echo_with_logprobs(served: Served) -> None:
    if not can(served, "echo") or "prompt_logprobs" not in served.worker.capabilities.parameters:
        error = bad(served, echo=True, logprobs=1)
        assert error["param"] == "logprobs"
        assert error["message"].startswith(("echo with logprobs is not supported", "echo is not supported"))
        return
    answer = complete(served, echo=True, logprobs=1)
    found = answer.choices[0].logprobs
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert all(value is not None for value in found.token_logprobs[1:])
    assert len(found.tokens) >= answer.usage.prompt_tokens
    assert found.text_offset == sorted(found.text_offset)
    assert max(found.text_offset) <= len(answer.choices[0].text)


@pytest.mark.parametrize("echo", [True, False])
def test_streamed_logprobs_are_the_same(served: Served, echo: bool) -> None:
    if echo and "prompt_logprobs" not in served.worker.capabilities.parameters:
        assert bad(served, stream=True, echo=True, logprobs=2)["param"] == "logprobs"
        return
    whole = complete(served, logprobs=2, echo=echo).choices[0].logprobs
    joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in complete(served, logprobs=2, echo=echo, stream=True):
        if chunk.choices[0].logprobs is not None:
            for name, values in joined.items():
                values.extend(getattr(chunk.choices[0].logprobs, name))
    assert joined == {name: getattr(whole, name) for name in joined}


def test_token_ids(served: Served) -> None:
    fields: dict[str, Any] = {"extra_body": {"return_token_ids": True, "ignore_eos": True}}
    answer = complete(served, **fields)
    extra = answer.choices[0].model_extra
    assert extra["prompt_token_ids"] == ids(served, "Once upon")
    assert len(extra["token_ids"]) == 6
    streamed = [
        i for c in complete(served, **fields, stream=True) for i in c.choices[0].model_extra.get("token_ids", [])
    ]
    assert streamed == extra["token_ids"]


def test_overflow(served: Served) -> None:
    limit = served.worker.capabilities.context_length
    body = {"model": served.model, "prompt": "word " * limit, "max_tokens": 2, "overflow": "truncate_left"}
    for stream in (False, True):
        import json

        status, headers, data = served.request("POST", PATH, {**body, "stream": stream})
        assert status == 200
        assert int(headers["x-drivetrain-truncated-tokens"]) > 0
        if not stream:
            assert json.loads(data)["usage"]["prompt_tokens"] == limit - 2


def test_a_list_longer_than_the_slots() -> None:
    with serving(fake({"max_running": 2}, text="abc")) as served:
        whole = complete(served, prompt=[str(i) for i in range(20)])
        assert [choice.text for choice in whole.choices] == ["abc"] * 20
        texts = [""] * 20
        for chunk in complete(served, prompt=[str(i) for i in range(20)], stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == ["abc"] * 20
        served.settle()


def test_a_failure_ends_the_whole_list() -> None:
    with serving(fake(repeat=True, step_delay_s=0.1, fault=RuntimeError("no"), fault_at_step=3)) as served:
        error = served.refused(PATH, {"model": "fake", "prompt": ["a", "b"], "max_tokens": 9}, 500)
        assert error["code"] == "engine_error"
        *_, error, done = served.events(PATH, {"model": "fake", "prompt": ["a", "b"], "max_tokens": 9})
        assert error["error"]["code"] == "engine_error"
        assert done == "[DONE]"
        served.settle()
