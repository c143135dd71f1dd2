"""FastChat's worker protocol, route by route."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from drivetrain.core.results import TokenLogprob
from drivetrain.server.dropin import fastchat
from drivetrain.server.dropin.codes import ErrorCode
from drivetrain.server.format.openai import completion_logprobs
from recorded_spans import RecordingTracer
from server.dropin_parts import ROUTES, leave_early, parts, speaking, told
from server.serving import Served, fake, serving

SAYS = "One two three."


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with speaking(fake(text=SAYS)) as made:
        yield made


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    yield shared
    shared.settle()


@pytest.fixture(scope="module")
def lenient() -> Iterator[Served]:
    with speaking(fake(text=SAYS), unknown_fields="warn") as made:
        yield made


def asked(**fields: Any) -> dict[str, Any]:
    """As the API server writes it: what it does not know is null."""
    return {
        "model": "fake",
        "prompt": "Say it: ",
        "temperature": 0.0,
        "logprobs": None,
        "top_p": 1.0,
        "top_k": -1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_new_tokens": 64,
        "echo": False,
        "stop_token_ids": None,
        "stop": [],
        **fields,
    }


def test_the_whole_answer(served: Served) -> None:
    answer = told(served, "/worker_generate", asked())
    usage = answer.pop("usage")
    assert answer == {"text": SAYS, "error_code": 0, "finish_reason": "stop", "logprobs": None}
    assert usage["completion_tokens"] == len(SAYS) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_says_all_so_far_each_time(served: Served) -> None:
    found = parts(served, "/worker_generate_stream", asked())
    texts = [part["text"] for part in found]
    assert len(found) > 3
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert [part["finish_reason"] for part in found] == [None] * (len(found) - 1) + ["stop"]
    assert found[-1] == told(served, "/worker_generate", asked())
    counts = [part["usage"]["completion_tokens"] for part in found]
    assert counts == sorted(counts)
    assert found[0]["usage"]["prompt_tokens"] == found[-1]["usage"]["prompt_tokens"] > 0


def test_the_protocols_defaults() -> None:
    """Echo is on, and 256 tokens are the most."""
    with speaking(fake(text="x" * 400)) as other:
        for given in ({}, {"max_new_tokens": None}, {"max_new_tokens": -1}):
            answer = told(other, "/worker_generate", {"prompt": "Go: ", **given})
            assert answer["text"] == "Go: " + "x" * 256
            assert answer["finish_reason"] == "length"


@pytest.mark.parametrize("stop", ["two", ["three", "two"]])
def test_stops_are_left_out(served: Served, stop: Any) -> None:
    answer = told(served, "/worker_generate", asked(stop=stop))
    assert (answer["text"], answer["finish_reason"]) == ("One ", "stop")


def test_stop_token_ids(served: Served) -> None:
    answer = told(served, "/worker_generate", asked(stop_token_ids=[ord("t")]))
    assert answer["text"] == "One "


def test_logprobs_are_parallel_arrays_of_all_so_far(served: Served) -> None:
    found = parts(served, "/worker_generate_stream", asked(logprobs=1, max_new_tokens=4))
    last = found[-1]
    names = {"text_offset", "tokens", "token_logprobs", "top_logprobs"}
    assert set(last["logprobs"]) == names
    assert [len(last["logprobs"][name]) for name in names] == [4] * 4
    assert "".join(last["logprobs"]["tokens"]) == last["text"] == "One "
    assert [len(part["logprobs"]["tokens"]) for part in found] == [1, 2, 3, 4]  # the end comes with the last token


def test_a_part_with_logprobs_is_sent_once_there_are_an_eighth_more() -> None:
    """Each has all so far: one with every token would be their square."""
    with speaking(fake(text=SAYS, repeat=True)) as other:
        found = parts(other, "/worker_generate_stream", asked(logprobs=1, max_new_tokens=400))
        without = parts(other, "/worker_generate_stream", asked(max_new_tokens=400))
    *before, last = [len(part["logprobs"]["tokens"]) for part in found]
    assert last == 400
    assert 20 < len(before) < 50
    assert all(after * 8 >= earlier * 9 for earlier, after in pairwise(before))
    assert len(without) > 300
    assert found[-1]["text"] == without[-1]["text"]


def test_each_logprob_is_spelled_once_in_a_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parts have it."""
    spelled: list[TokenLogprob] = []

    def noted(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        spelled.extend(entries)
        return completion_logprobs(entries)

    whole = told(served, "/worker_generate", asked(logprobs=2, echo=True))
    monkeypatch.setattr(fastchat, "completion_logprobs", noted)
    found = parts(served, "/worker_generate_stream", asked(logprobs=2, echo=True))
    assert len(found) > 5
    assert len(spelled) == len(found[-1]["logprobs"]["tokens"])
    assert found[-1] == whole


def test_top_p_of_zero_is_the_likeliest_token(served: Served) -> None:
    assert told(served, "/worker_generate", asked(top_p=0.0, temperature=1.0))["error_code"] == 0


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"use_beam_search": True}, ErrorCode.PARAM_OUT_OF_RANGE, "use_beam_search"),
        ({"best_of": 2}, ErrorCode.PARAM_OUT_OF_RANGE, "best_of"),
        ({"images": ["data:image/png;base64,AA=="]}, ErrorCode.PARAM_OUT_OF_RANGE, "images"),
        ({"temperature": 3}, ErrorCode.PARAM_OUT_OF_RANGE, "temperature"),
        ({"max_new_tokens": -2}, ErrorCode.PARAM_OUT_OF_RANGE, "max_new_tokens"),
        ({"max_new_tokens": "many"}, ErrorCode.PARAM_OUT_OF_RANGE, "max_new_tokens"),
        ({"top_p": 0.5}, ErrorCode.PARAM_OUT_OF_RANGE, "top_p"),
        ({"made_up": 1}, ErrorCode.PARAM_OUT_OF_RANGE, "made_up"),
        ({"prompt": None}, ErrorCode.PARAM_OUT_OF_RANGE, "prompt"),
        ({"prompt": "x" * 5000}, ErrorCode.CONTEXT_OVERFLOW, "4096"),
        ({"model": "other"}, ErrorCode.INVALID_MODEL, "other"),
    ],
)
def test_what_is_not_honoured_is_refused_by_its_number(
    served: Served, fields: dict[str, Any], code: ErrorCode, named: str
) -> None:
    whole = told(served, "/worker_generate", asked(**fields))
    assert whole["error_code"] == code
    assert named in whole["text"]
    assert parts(served, "/worker_generate_stream", asked(**fields)) == [whole]


def test_what_asks_for_nothing_is_taken(served: Served) -> None:
    answer = told(served, "/worker_generate", asked(best_of=1, use_beam_search=False, images=[]))
    assert answer["error_code"] == 0


def test_refusals_are_counted(served: Served) -> None:
    def counted() -> float:
        metrics = served.request("GET", "/metrics")[2].decode()
        lines = [line for line in metrics.splitlines() if "refusals_total{" in line and 'reason="unsupported"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    before = counted()
    told(served, "/worker_generate", asked(use_beam_search=True))
    assert counted() == before + 1
    assert parts(served, "/worker_generate_stream", asked(use_beam_search=True))
    assert counted() == before + 2


def test_a_body_that_is_no_json(served: Served) -> None:
    assert told(served, "/worker_generate", b"{")["error_code"] == ErrorCode.PARAM_OUT_OF_RANGE


def test_a_fault_ends_the_stream_with_its_number() -> None:
    with speaking(fake(text=SAYS, fault=RuntimeError("broken"), fault_at_step=4)) as served:
        *before, last = parts(served, "/worker_generate_stream", asked())
        assert [part["error_code"] for part in before] == [0] * len(before)
        assert before
        assert last["error_code"] == ErrorCode.INTERNAL_ERROR
        assert told(served, "/worker_generate", asked())["error_code"] == ErrorCode.INTERNAL_ERROR


def test_a_full_worker_says_so_and_its_length_is_the_gates() -> None:
    slow = fake({"max_waiting": 0}, text=SAYS, repeat=True, step_delay_s=0.02, max_concurrency=1)
    with speaking(slow) as served:
        stream = served.client.completions.create(model="fake", prompt="x", max_tokens=500, stream=True)
        next(iter(stream))
        assert told(served, "/worker_get_status", None)["queue_length"] == 1
        assert told(served, "/worker_generate", asked())["error_code"] == ErrorCode.ENGINE_OVERLOADED
        stream.close()
        served.settle()


def test_a_client_that_leaves_frees_the_slot() -> None:
    with speaking(fake(text=SAYS, repeat=True, step_delay_s=0.01)) as served:
        leave_early(served, "/worker_generate_stream", asked(max_new_tokens=3000))


def test_status(served: Served) -> None:
    assert told(served, "/worker_get_status", None) == {"model_names": ["fake"], "speed": 1, "queue_length": 0}


def test_a_draining_worker_is_no_longer_offered() -> None:
    with speaking(fake(text=SAYS)) as served:
        served.on_loop(served.worker.drain())
        status, _, data = served.request("POST", "/worker_get_status")
        assert (status, json.loads(data)["model_names"]) == (503, ["fake"])
        assert told(served, "/worker_generate", asked())["error_code"] == ErrorCode.ENGINE_OVERLOADED


def test_counts_are_those_of_an_answer(served: Served) -> None:
    counted = told(served, "/count_token", {"model": "fake", "prompt": "Say it: "})
    assert counted == {"count": told(served, "/worker_generate", asked())["usage"]["prompt_tokens"], "error_code": 0}


def test_a_count_that_is_refused_is_a_refusal() -> None:
    with speaking(fake(text=SAYS)) as served:
        answer = told(served, "/count_token", {"model": "other", "prompt": "x"})
        assert (answer["count"], answer["error_code"]) == (0, ErrorCode.INVALID_MODEL)
        answer = told(served, "/count_token", b"{")
        assert (answer["count"], answer["error_code"]) == (0, ErrorCode.PARAM_OUT_OF_RANGE)
        series = served.request("GET", "/metrics")[2].decode()
    assert 'drivetrain_refusals_total{param="model",reason="model_not_found"} 1.0' in series
    assert 'drivetrain_refusals_total{param="",reason="invalid_request"} 1.0' in series


def test_details(served: Served) -> None:
    assert told(served, "/model_details", {"model": "fake"}) == {"context_length": 4096}


@pytest.mark.parametrize("path", ["/worker_get_conv_template", "/model_details"])
def test_what_their_server_keeps_is_never_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what comes with a status that is not 200 for ever; without `conv` the one request fails."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    with speaking(fake(text=SAYS)) as other:
        unknown = told(other, path, {"model": "other"})
        assert (set(unknown), unknown["error_code"]) == ({"text", "error_code"}, ErrorCode.INVALID_MODEL)
        assert told(other, path, b"{")["error_code"] == ErrorCode.PARAM_OUT_OF_RANGE
        monkeypatch.setattr("drivetrain.scale.fleet.fleet.Fleet.lease", broken)
        failed = told(other, path, {"model": "fake"})
        assert (set(failed), failed["error_code"]) == ({"text", "error_code"}, ErrorCode.INTERNAL_ERROR)
        assert "a fault of ours" not in failed["text"]


def test_embeddings(served: Served) -> None:
    ours = served.client.embeddings.create(model="fake", input=["a", "b"])
    answer = told(served, "/worker_get_embeddings", {"model": "fake", "input": ["a", "b"], "encoding_format": None})
    assert set(answer) == {"embedding", "token_num"}
    assert answer["token_num"] == ours.usage.prompt_tokens
    for vector, other in zip(answer["embedding"], ours.data, strict=True):
        assert vector == pytest.approx(other.embedding, abs=1e-6)
    packed = told(served, "/worker_get_embeddings", {"input": ["a"], "encoding_format": "base64"})["embedding"][0]
    data = base64.b64decode(packed)
    assert struct.unpack(f"<{len(data) // 4}f", data) == pytest.approx(answer["embedding"][0], abs=1e-6)


def test_embeddings_refused(served: Served) -> None:
    answer = told(served, "/worker_get_embeddings", {"input": ["a"], "encoding_format": "hex"})
    assert answer["error_code"] == ErrorCode.PARAM_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/worker_generate", asked()),
        ("/worker_generate_stream", asked()),
        ("/worker_get_embeddings", {"input": ["a"]}),
        ("/count_token", {"prompt": "x"}),
        ("/model_details", {}),
        ("/worker_get_conv_template", {}),
        ("/api/worker/generate", {"prompt": "x"}),
        ("/api/worker/generate_stream", {"prompt": "x"}),
        ("/api/worker/embeddings", {"input": ["a"]}),
        ("/api/worker/count_token", {"prompt": "x"}),
        ("/api/worker/model_metadata", {}),
    ],
)
def test_every_route_names_what_it_left_out(path: str, body: dict[str, Any], lenient: Served) -> None:
    status, headers, data = lenient.request("POST", path, {**body, "made_up": 1})
    assert status == 200, data
    assert headers["x-drivetrain-ignored"] == "made_up"


def test_the_callers_trace_goes_on() -> None:
    tracer = RecordingTracer()
    here = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}
    with speaking(fake(tracer=tracer, text=SAYS)) as served:
        served.request("POST", "/worker_generate", asked(), here)
        served.request("POST", "/worker_get_embeddings", {"input": ["a"]}, here)
    assert [span.parent for span in tracer.requests] == [here, here]


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/worker_generate", "text_completion"),
        ("/worker_generate_stream", "text_completion"),
        ("/worker_get_embeddings", "embeddings"),
        ("/api/worker/generate", "chat"),
        ("/api/worker/generate_stream", "chat"),
        ("/api/worker/embeddings", "embeddings"),
    ],
)
def test_a_refusal_has_its_span(path: str, operation: str) -> None:
    """One, whether the server refuses it or the worker."""
    tracer = RecordingTracer()
    with serving(fake(tracer=tracer, text=SAYS), tracer, more_routes=ROUTES) as served:
        served.request("POST", path, b"{")
        served.request("POST", path, {"model": "other", "prompt": "x", "input": ["x"]})
    assert [span.name for span in tracer.requests] == [operation, operation]
    assert [span.ends for span in tracer.requests] == [["invalid_request"], ["unsupported"]]


def test_a_refusal_of_the_worker_has_one_span() -> None:
    tracer = RecordingTracer()
    with serving(fake(tracer=tracer, text=SAYS), tracer, more_routes=ROUTES) as served:
        told(served, "/worker_generate", asked(temperature=3))
        parts(served, "/worker_generate_stream", asked(temperature=3))
    assert [span.ends for span in tracer.requests] == [["invalid_request"]] * 2


def test_the_routes_are_not_there_unless_asked_for() -> None:
    with serving(fake(text=SAYS)) as served:
        assert served.request("POST", "/worker_generate", asked())[0] == 404
        assert served.request("POST", "/api/worker/generate", {})[0] == 404


def test_a_key_is_asked_for_there_too() -> None:
    with speaking(fake(text=SAYS), api_keys=("secret",)) as served:
        assert served.request("POST", "/worker_generate", asked())[0] == 401
        assert served.request("POST", "/api/worker/generate", {})[0] == 401
