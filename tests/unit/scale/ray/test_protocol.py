"""What goes in comes out, whatever the contract's types hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.answer import CallBegun, ContentPiece, ExtraField, ReasoningPiece
from drivetrain.core.capabilities import Capabilities, RerankWay
from drivetrain.core.errors import ContextOverflow, DrivetrainError, EngineFailed, MissingExtra, NotReady, Overloaded
from drivetrain.core.events import ChoiceFinished, Delta, Event, Finished, Started
from drivetrain.core.messages import ImagePart, Message, TextPart
from drivetrain.core.parameters import build_request
from drivetrain.core.receipt import ChoiceRecord, PromptRecord, Receipt, Settled
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import (
    DeviceMemory,
    Embeddings,
    FinishReason,
    Metrics,
    Partial,
    Ranking,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from drivetrain.scale.ray import protocol
from drivetrain.worker.reranking import RerankCall

LOGPROB = TokenLogprob(
    1, "ÿ", b"\xff", None, (TopLogprob(2, "q", b"q", -1.5), TopLogprob(3, "", b"", -float("inf"))), 3
)
RECEIPT = Receipt(
    form=1,
    request_id="r",
    created=5,
    model="m",
    weights=None,
    engine="native",
    device="cpu",
    dtype="float32",
    settings={"max_batch": 4},
    versions={"drivetrain": "1"},
    family="template",
    template="ab",
    prompt=PromptRecord(sha256="cd", tokens=2, ids=(1, 2), images=("ef",)),
    parameters={"temperature": Settled(0.5, "request"), "stop": Settled(["a"], "family"), "top_k": Settled(None, "x")},
    constraint=None,
    tools="01",
    choices=(ChoiceRecord(0, (1, 2), "stop"),),
    ignored=("nonsense",),
    request={"constraint": {"form": "regex", "source": "a"}},
    digest="sha256:23",
    signature="hmac-sha256:45",
)
EVENTS: list[Event] = [
    Started("r", "m", 3, 1, (1, 2, 3), "json_schema"),
    Delta(0, "x\ud800", (1, 2)),
    Delta(1, "", (), (LOGPROB,)),
    ChoiceFinished(0, FinishReason.STOP, (1, 2)),
    ChoiceFinished(1, FinishReason.STOP, "\n"),
    ChoiceFinished(2, FinishReason.LENGTH, 5),
    Delta(1, "<think>a", (7,), None, (ReasoningPiece("a"), ContentPiece("b"), CallBegun(0, "f"), ExtraField("x", [1]))),
    Delta(1, "", (8,), None, ()),
    ChoiceFinished(3, FinishReason.LENGTH),
    Finished(Usage(1, 2, 3, told=True, reasoning_tokens=1), Metrics(memory=(DeviceMemory("cpu", 1, 2, 3, 4),))),
    Finished(Usage(), Metrics(), RECEIPT),
]


def test_events() -> None:
    assert protocol.load_events(protocol.dump_events(EVENTS)) == (EVENTS, None)


def test_events_of_a_replica_of_another_version() -> None:
    """A rolling update has both for a while: this is what is read and written by all that there have been."""
    logprob = {"token_id": 1, "token": "a", "bytes": "YQ==", "logprob": -0.5, "top": [], "text_offset": 0}
    written = b'[[0,"a",[1]],["Delta",{"index":0,"text":"a","token_ids":[1],"logprobs":[%b],"new":1}]]'
    written %= json.dumps(logprob).encode()
    events: list[Event] = [Delta(0, "a", (1,)), Delta(0, "a", (1,), (TokenLogprob(1, "a", b"a", -0.5, (), 0),))]
    assert protocol.load_events(written) == (events, None)
    del (again := json.loads(written))[1][1]["new"]
    assert json.loads(protocol.dump_events(events)) == again


REQUESTS: list[dict[str, Any]] = [
    {"prompt": "Hello"},
    {"prompt_token_ids": [1, 2, 3], "logit_bias": {1: 2.0}, "sequence_bias": [((1, 2), 1.5)]},
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                ],
            },
        ],
        "images": [b"\0\xff"],
        "stop": ["a"],
        "bad_words_ids": [[1], [2, 3]],
        "exponential_decay_length_penalty": (1, 1.5),
        "overflow": "truncate_left",
        "trace_context": {"traceparent": "00-a"},
        "timeout_s": 3,
        "ignore_eos": False,
    },
    {
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": '{"a": "ß"}'}}],
                "reasoning_content": "Hm.",
            },
            {"role": "tool", "content": "2", "tool_call_id": "call_1"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}, "strict": True}},
            {"type": "function", "function": {"name": "g", "description": "It does."}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": True, "nested": {"a": [1, {"b": None}], "c": 1.5}},
        "reasoning_effort": "low",
        "max_reasoning_tokens": 5,
        "receipt": "full",
    },
]


@pytest.mark.parametrize("raw", REQUESTS)
def test_requests(raw: dict[str, Any]) -> None:
    request = build_request(raw)
    back = protocol.loads(GenerateRequest, protocol.dumps(request))
    assert back == request
    assert {type(value) for value in vars_of(back)} == {type(value) for value in vars_of(request)}


def vars_of(request: GenerateRequest) -> list[Any]:
    return [getattr(request, name) for name in GenerateRequest.__dataclass_fields__]


@given(st.text(), st.lists(st.integers(0, 2**31)), st.integers(0, 16))
def test_any_delta(text: str, ids: list[int], index: int) -> None:
    delta = Delta(index, text, tuple(ids))
    assert protocol.load_events(protocol.dump_events([delta])) == ([delta], None)


ERRORS: list[DrivetrainError] = [
    ContextOverflow("too long", prompt_tokens=3, limit=2, param="prompt"),
    Overloaded("full", retry_after_s=2.5),
    NotReady("later"),
    EngineFailed("broken"),
    MissingExtra("this", extra="vllm"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_errors_keep_their_type_and_what_they_say(error: DrivetrainError) -> None:
    error.partial = Partial((), Usage(3, 4))
    events, ending = protocol.load_events(protocol.dump_failure(error))
    assert events == []
    assert ending is not None
    back, usage = ending
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert usage == Usage(3, 4)
    assert {**vars(back), "partial": error.partial} == vars(error)
    with pytest.raises(type(error)):
        protocol.load_answer(str, protocol.dump_answer(error))


def test_an_error_of_a_newer_replica_is_a_failed_engine() -> None:
    with pytest.raises(EngineFailed, match="new"):
        protocol.load_answer(str, b'{"error": {"code": "never_heard_of", "message": "new", "param": null}}')


def test_a_field_of_a_newer_replica_is_left_out() -> None:
    optional: Any = Usage | None
    for hint in (Usage, optional):
        assert protocol.loads(hint, b'{"prompt_tokens": 3, "later": 1}') == Usage(3)


def test_a_field_of_a_newer_handle_is_left_out_of_a_part_too() -> None:
    request = build_request({"messages": [Message("user", (TextPart("hi"), ImagePart(url="data:,x")))]})
    raw = json.loads(protocol.dumps(request))
    for part in raw["messages"][0]["content"]:
        part["later"] = 1
    assert protocol.loads(GenerateRequest, json.dumps(raw).encode()) == request


def test_answers() -> None:
    made = Embeddings("m", ((0.5, -1.0), (1.0, 0.0)), Usage(2))
    assert protocol.load_answer(Embeddings, protocol.dump_answer(made)) == made
    ranking = Ranking("m", (0.5, 1.0), Usage(2, 1))
    assert protocol.load_answer(Ranking, protocol.dump_answer(ranking)) == ranking
    call = (RerankCall("q", ["a", "é"], max_tokens_per_doc=3, trace_context={"a": "b"}), "id")
    assert protocol.loads(tuple[RerankCall, str], protocol.dumps(call)) == call
    parsed = build_request({"messages": [{"role": "user", "content": "x"}]}).messages
    hint: Any = tuple[str | None, tuple[Message, ...] | None]
    assert protocol.loads(hint, protocol.dumps((None, parsed))) == (None, parsed)
    capabilities = Capabilities(parameters=frozenset({"top_k", "seed"}), context_length=7, rerank=RerankWay.HEAD)
    assert protocol.loads(Capabilities, protocol.dumps(capabilities)) == capabilities
