"""DB-GPT's worker protocol, route by route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from drivetrain.server.dropin.codes import ErrorCode
from server.dropin_parts import leave_early, parts, speaking, told
from server.serving import Served, fake

SAYS = "One two three."
BASE = "/api/worker"


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with speaking(fake(text=SAYS)) as made:
        yield made


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    yield shared
    shared.settle()


def asked(*messages: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    said = [{"role": role, "content": content, "round_index": 0} for role, content in messages or [("human", "Hi")]]
    return {"model": "fake", "messages": said, "echo": False, "temperature": 0, "span_id": "a:b", **fields}


def text_of(output: dict[str, Any]) -> str:
    content = output["content"]
    assert content["type"] == "text"
    assert content["object"]["format"] == "text"
    text: str = content["object"]["data"]
    return text


def test_the_whole_answer(served: Served) -> None:
    output = told(served, f"{BASE}/generate", asked())
    assert text_of(output) == SAYS
    fields = {"content", "error_code", "incremental", "model_context", "finish_reason", "usage", "metrics"}
    assert set(output) == fields
    assert (output["error_code"], output["finish_reason"], output["incremental"]) == (0, "stop", False)
    assert output["usage"]["total_tokens"] == sum(output["usage"][n] for n in ("prompt_tokens", "completion_tokens"))
    metrics = output["metrics"]
    assert metrics["start_time_ms"] <= metrics["first_token_time_ms"] <= metrics["end_time_ms"]
    assert metrics["completion_tokens"] == len(SAYS) + 1


def test_a_chat_is_rendered_here(served: Served) -> None:
    """With the roles that DB-GPT has for them; what only people are shown is left out."""
    chat = [("system", "Be brief."), ("human", "Hi"), ("ai", "Yes?"), ("view", "<chart/>"), ("human", "More")]
    output = told(served, f"{BASE}/generate", asked(*chat))
    ours = served.client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "More"},
        ],
    )
    assert ours.usage is not None
    assert output["usage"]["prompt_tokens"] == ours.usage.prompt_tokens


def test_content_in_parts(served: Served) -> None:
    text = {"type": "text", "object": {"data": "Hi", "format": "text"}}
    assert text_of(told(served, f"{BASE}/generate", asked(("human", [text])))) == SAYS


@pytest.mark.parametrize("form", ["url", "base64@image/png"])
def test_an_image_is_refused_by_a_model_that_sees_none(served: Served, form: str) -> None:
    data = "data:image/png;base64,AA==" if form == "url" else "AA=="
    image = {"type": "image", "object": {"data": data, "format": form}}
    output = told(served, f"{BASE}/generate", asked(("human", [image])))
    assert output["error_code"] == ErrorCode.PARAM_OUT_OF_RANGE
    assert "images" in text_of(output)


def test_a_stream_says_all_so_far_each_time(served: Served) -> None:
    found = parts(served, f"{BASE}/generate_stream", asked())
    texts = list(map(text_of, found))
    assert len(found) > 3
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert [part["finish_reason"] for part in found] == [None] * (len(found) - 1) + ["stop"]
    assert [part["metrics"] is None for part in found] == [True] * (len(found) - 1) + [False]
    assert texts[-1] == SAYS


def test_a_prompt_is_repeated_unless_it_is_not_wanted(served: Served) -> None:
    fields = {"model": "fake", "prompt": "Go: ", "max_new_tokens": 4, "temperature": 0, "messages": []}
    assert text_of(told(served, f"{BASE}/generate", fields)) == "Go: One "
    assert text_of(told(served, f"{BASE}/generate", {**fields, "echo": False})) == "One "


def test_parameters(served: Served) -> None:
    assert text_of(told(served, f"{BASE}/generate", asked(stop="two", temperature=0.3, top_p=0))) == "One "
    limited = told(served, f"{BASE}/generate", asked(max_new_tokens=3, top_k=-1))
    assert (text_of(limited), limited["finish_reason"]) == ("One", "length")
    unlimited = told(served, f"{BASE}/generate", asked(max_new_tokens=-1))
    assert (text_of(unlimited), unlimited["finish_reason"]) == (SAYS, "stop")


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        (asked(echo=True), ErrorCode.PARAM_OUT_OF_RANGE, "echo"),
        (asked(("robot", "x")), ErrorCode.PARAM_OUT_OF_RANGE, "robot"),
        (asked(("human", [{"type": "audio"}])), ErrorCode.PARAM_OUT_OF_RANGE, "messages[0].content[0]"),
        (asked(max_new_tokens=-2), ErrorCode.PARAM_OUT_OF_RANGE, "max_new_tokens"),
        (asked(context_len=10, max_new_tokens=5), ErrorCode.CONTEXT_OVERFLOW, "10"),
        (asked(model="other"), ErrorCode.INVALID_MODEL, "other"),
        (asked(made_up=1), ErrorCode.PARAM_OUT_OF_RANGE, "made_up"),
        ({"model": "fake"}, ErrorCode.PARAM_OUT_OF_RANGE, "prompt"),
    ],
)
def test_what_is_not_honoured_is_refused_by_its_number(
    served: Served, body: dict[str, Any], code: ErrorCode, named: str
) -> None:
    output = told(served, f"{BASE}/generate", body)
    assert output["error_code"] == code
    assert named in text_of(output)
    assert parts(served, f"{BASE}/generate_stream", body) == [output]


def test_a_client_that_leaves_frees_the_slot() -> None:
    with speaking(fake(text=SAYS, repeat=True, step_delay_s=0.01)) as served:
        leave_early(served, f"{BASE}/generate_stream", asked(max_new_tokens=3000))


def test_tokens_are_counted_with_and_without_a_name(served: Served) -> None:
    with_name = told(served, f"{BASE}/count_token", {"model": "fake", "prompt": "Go: "})
    assert with_name == told(served, f"{BASE}/count_token", {"prompt": "Go: "})
    usage = told(served, f"{BASE}/generate", {"prompt": "Go: ", "max_new_tokens": 1})["usage"]
    assert with_name == usage["prompt_tokens"]


def test_metadata(served: Served) -> None:
    found = told(served, f"{BASE}/model_metadata", {"model": "fake"})
    assert (found["model"], found["context_length"], found["chat_model"]) == ("fake", 4096, True)
    assert found["ext_metadata"]["prompt_roles"] == ["system", "human", "ai"]


def test_embeddings(served: Served) -> None:
    vectors = told(served, f"{BASE}/embeddings", {"model": "fake", "input": ["a", "b"], "worker_type": "text2vec"})
    ours = served.client.embeddings.create(model="fake", input=["a", "b"])
    assert vectors == [pytest.approx(item.embedding, abs=1e-6) for item in ours.data]


def test_it_ranks_nothing(served: Served) -> None:
    body = {"model": "fake", "input": ["a"], "query": "b", "worker_type": "reranker"}
    assert served.refused(f"{BASE}/embeddings", body)["param"] == "worker_type"


def test_parameter_descriptions(served: Served) -> None:
    status, _, data = served.request("GET", f"{BASE}/parameter/descriptions?model=fake&worker_type=llm")
    found = {entry["param_name"]: entry for entry in json.loads(data)}
    assert status == 200
    assert found["max_tokens"]["description"]
    assert "top_k" not in found  # the fake does not honour it
    assert served.request("GET", f"{BASE}/parameter/descriptions?model=other")[0] == 404


@pytest.mark.parametrize("path", ["models/startup", "models/shutdown", "apply"])
def test_models_are_not_started_from_afar(served: Served, path: str) -> None:
    assert "drivetrain" in served.refused(f"{BASE}/{path}", {"model": "fake"})["message"]
    assert served.request("GET", f"{BASE}/models/supports")[2] == b"[]"
