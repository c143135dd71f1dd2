"""Answers with reasoning and calls in the words of the OpenAI API: the joined chunks are the whole message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.answer import (
    AnswerEvent,
    AnswerMessage,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ContentPiece,
    ExtraField,
    Flaw,
    ReasoningPiece,
)
from drivetrain.core.events import ChoiceFinished, Delta, Event, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason, Metrics, Result, TokenLogprob, Usage
from drivetrain.server.encoding import ENCODER
from drivetrain.server.format.chat import ChatFormatter
from drivetrain.server.parse.translate import ParsedRequest
from drivetrain.text.answers.parser import MessageBuilder

Parts = Sequence[AnswerEvent]


def call(index: int, name: str, *arguments: str, flaw: Flaw | None = None, raw: str | None = None) -> list[AnswerEvent]:
    begun = CallBegun(index, name, f"call_{index}")
    return [begun, *(ArgumentsPiece(index, text) for text in arguments), CallEnded(index, flaw, raw)]


CUT, BAD = Flaw.CUT_OFF, Flaw.MALFORMED

ANSWERS: dict[str, list[AnswerEvent]] = {
    "nothing": [],
    "content": [ContentPiece("One "), ContentPiece('"two" é')],
    "reasoning": [ReasoningPiece("hm"), ReasoningPiece("\nso")],
    "both": [ReasoningPiece("hm"), ContentPiece("yes")],
    "in turn": [ContentPiece("a"), ReasoningPiece("b"), ContentPiece("\n\nc"), ReasoningPiece("\n\nd")],
    "empty pieces": [ContentPiece(""), ReasoningPiece(""), *call(0, "f", "", "{}", "")],
    "call": call(0, "f", '{"a"', ": 1}"),
    "no arguments": call(0, "f", "{}"),
    "calls": [*call(0, "f", "{}"), *call(1, "g", "{", "}"), *call(2, "f", "{}")],
    "all": [
        ReasoningPiece("hm"), ContentPiece("now"), *call(0, "f", "{}"), ContentPiece("\n\nthen"), *call(1, "g", "{}"),
    ],
    "cut off": [ContentPiece("x"), *call(0, "f", '{"a": ', flaw=CUT, raw='<tool_call>{"name": "f"')],
    "cut off before its arguments": call(0, "f", flaw=CUT, raw="<f"),
    "cut off before its name": call(0, "", flaw=CUT, raw="<tool_call>{"),
    "malformed": [*call(0, "f", "{oops", flaw=BAD, raw="<f>"), ContentPiece("sorry")],
    "malformed without a name": [ContentPiece("x"), *call(0, "", flaw=BAD, raw="<bad>"), ContentPiece("y")],
    "unnamed ones among others": [
        *call(0, "", flaw=BAD, raw="<1>"),
        *call(1, "f", "{}"),
        *call(2, "", flaw=BAD, raw="<2>"),
        ReasoningPiece("hm"),
        *call(3, "g", "{}"),
        *call(4, "", flaw=CUT, raw="<3"),
    ],
    "another field": [ExtraField("mood", "good"), ContentPiece("x")],
}  # fmt: skip


def message(parts: Iterable[AnswerEvent]) -> AnswerMessage:
    builder = MessageBuilder()
    for part in parts:
        builder.add(part)
    return builder.message()


def formatter(**wishes: Any) -> ChatFormatter:
    given: dict[str, Any] = {
        "n": 1, "stream": True, "include_usage": False, "logprobs": False, "token_ids": False, "names": {}, "id": "c",
    }  # fmt: skip
    requests = (GenerateRequest(prompt="x"),)
    return ChatFormatter("m", ParsedRequest(requests=requests, **(given | wishes)), created=1)


def whole(made: ChatFormatter, choices: Sequence[Choice], usage: Usage | None = None) -> dict[str, Any]:
    result = Result("c", "m", tuple(choices), usage or Usage(), Metrics())
    document = json.loads(ENCODER.encode(made.whole([result], result.usage)))
    assert isinstance(document, dict)
    return document


def chunks(made: ChatFormatter, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    for event in events:
        for line in made.format(0, [event]).decode().split("\n\n"):
            if line:
                yield json.loads(line.removeprefix("data: "))


def joined(chunks: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The message of each choice, as the API's clients put it together. A stream tells only of annotations that there
    are."""
    messages: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            made, delta = messages.setdefault(choice["index"], {"annotations": []}), choice["delta"]
            assert choice["finish_reason"] is None or not delta
            for name, value in delta.items():
                if name == "tool_calls":
                    for piece in value:
                        _add_call(made.setdefault(name, []), piece)
                elif isinstance(value, str) and name != "role":
                    made[name] = (made.get(name) or "") + value
                else:
                    made[name] = value
    for made in messages.values():
        if made.get("tool_calls") and not made["content"]:
            made["content"] = None  # a stream cannot know at its start that there will be none
    return messages


def _add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    index = piece.pop("index")
    if index == len(calls):
        assert piece["function"] == {"name": piece["function"]["name"], "arguments": ""}
        calls.append(piece)
    else:
        assert piece.keys() == {"function"}
        assert index == len(calls) - 1
        calls[index]["function"]["arguments"] += piece["function"]["arguments"]


def stream(parts: Parts, cut: int, index: int = 0) -> list[Event]:
    """`cut` parts in each delta, with an empty one before each."""
    deltas: list[Event] = []
    for at in range(0, max(len(parts), 1), cut):
        deltas += [Delta(index, "", (7,), None, ()), Delta(index, "x", (8, 9), None, tuple(parts[at : at + cut]))]
    return [Started("c", "m", 3), *deltas, ChoiceFinished(index, FinishReason.STOP)]


@pytest.mark.parametrize("wishes", [{}, {"token_ids": True}, {"logprobs": True}], ids=["plain", "ids", "logprobs"])
@pytest.mark.parametrize("cut", [1, 2, 3, 99])
@pytest.mark.parametrize("name", ANSWERS)
def test_the_joined_stream_is_the_whole_message(name: str, cut: int, wishes: dict[str, bool]) -> None:
    parts = ANSWERS[name]
    (choice,) = whole(formatter(**wishes), [Choice(0, "never shown", message=message(parts))])["choices"]
    told = joined(chunks(formatter(**wishes), stream(parts, cut)))
    assert told == {0: choice["message"]}
    assert "never shown" not in str(choice)


def test_whole_messages() -> None:
    def of(name: str) -> dict[str, Any]:
        (choice,) = whole(formatter(), [Choice(0, "", message=message(ANSWERS[name]))])["choices"]
        assert choice["message"].pop("role") == "assistant"
        assert choice["message"].pop("refusal") is None
        assert choice["message"].pop("annotations") == []
        return dict(choice["message"])

    def calls(*made: tuple[int, str, str]) -> list[dict[str, Any]]:
        return [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, name, arguments in made
        ]

    assert of("nothing") == {"content": ""}
    assert of("reasoning") == {"content": "", "reasoning_content": "hm\nso"}
    assert of("call") == {"content": None, "tool_calls": calls((0, "f", '{"a": 1}'))}
    assert of("all") == {
        "content": "now\n\nthen",
        "reasoning_content": "hm",
        "tool_calls": calls((0, "f", "{}"), (1, "g", "{}")),
    }
    assert of("cut off") == {"content": "x", "tool_calls": calls((0, "f", '{"a": '))}
    assert of("cut off before its name") == {"content": ""}
    assert of("malformed") == {"content": "sorry", "tool_calls": calls((0, "f", "{oops"))}
    assert of("malformed without a name") == {"content": "xy\n<bad>"}
    assert of("unnamed ones among others") == {
        "content": "<1>\n<2>",
        "reasoning_content": "hm",
        "tool_calls": calls((1, "f", "{}"), (3, "g", "{}")),
    }
    assert of("another field") == {"content": "x"}


def test_an_answer_that_is_not_read_is_all_content() -> None:
    (choice,) = whole(formatter(), [Choice(0, "<think>x")])["choices"]
    assert choice["message"] == {"role": "assistant", "content": "<think>x", "refusal": None, "annotations": []}
    events: list[Event] = [
        Started("c", "m", 3),
        Delta(0, "<think>"),
        Delta(0, ""),
        Delta(0, "x"),
        ChoiceFinished(0, FinishReason.STOP),
    ]
    assert joined(chunks(formatter(), events)) == {0: choice["message"]}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*ANSWERS]), st.integers(1, 4)), max_size=3), st.randoms())
def test_choices_in_any_order(picked: list[tuple[int, str, int]], random: Any) -> None:
    """The events of several choices, mixed."""
    answers = {index: (ANSWERS[name], cut) for index, name, cut in picked}
    queues = [stream(parts, cut, index)[1:] for index, (parts, cut) in answers.items()]
    events: list[Event] = [Started("c", "m", 3)]
    while queues := [queue for queue in queues if queue]:
        events.append(random.choice(queues).pop(0))
    made = joined(chunks(formatter(n=3), events))
    choices = [Choice(index, "", message=message(parts)) for index, (parts, _) in answers.items()]
    expected = {choice["index"]: choice["message"] for choice in whole(formatter(n=3), choices)["choices"]}
    assert {index: made[index] for index in expected} == expected


def test_a_chunk_has_one_kind_of_part() -> None:
    parts = (*ANSWERS["all"], ContentPiece("!"))
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in chunks(formatter(), [Delta(0, "", (), None, (*parts, ContentPiece("?")))])
    ]
    assert [[*delta] for delta in deltas] == [
        ["reasoning_content"], ["content"], ["tool_calls"], ["tool_calls"], ["content"], ["tool_calls"],
        ["tool_calls"], ["content"],
    ]  # fmt: skip
    assert deltas[-1] == {"content": "!?"}


def test_ids_and_logprobs_are_told_once() -> None:
    """With the first chunk of their delta, and even if it has no parts."""
    entry = TokenLogprob(8, "x", b"x", -0.5, (), 0)
    parts = (ReasoningPiece("a"), ContentPiece("b"), *call(0, "f", "{}"))
    events = [Delta(0, "", (7,), (entry,), ()), Delta(0, "ab", (8, 9), (entry, entry), parts)]
    made = [c["choices"][0] for c in chunks(formatter(logprobs=True, token_ids=True), events)]
    assert [choice["token_ids"] for choice in made] == [[7], [8, 9], [], [], []]
    assert [choice["logprobs"] and len(choice["logprobs"]["content"]) for choice in made] == [1, 2, None, None, None]
    assert [*chunks(formatter(), [events[0]])] == []
    assert [*chunks(formatter(logprobs=True), [Delta(0, "", (7,), None, ())])] == []


def test_the_finish_reason_and_the_stop_stay_in_the_last_chunk() -> None:
    parts = tuple(call(0, "", flaw=BAD, raw="<tool_call>{"))
    events: list[Event] = [Delta(0, "", (), None, parts), ChoiceFinished(0, FinishReason.LENGTH, "END")]
    rest, last = (chunk["choices"][0] for chunk in chunks(formatter(), events))
    assert (rest["delta"], rest["finish_reason"]) == ({"content": "<tool_call>{"}, None)
    assert (last["delta"], last["finish_reason"], last["matched_stop"]) == ({}, "length", "END")
    (done,) = chunks(formatter(), [ChoiceFinished(0, FinishReason.TOOL_CALLS)])
    assert done["choices"][0]["finish_reason"] == "tool_calls"


def test_reasoning_tokens_are_in_the_usage() -> None:
    usage = Usage(3, 9, reasoning_tokens=4)
    document = whole(formatter(), [Choice(0, "x")], usage)
    assert document["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    end = formatter(include_usage=True).end(usage).split(b"\n\n")[0].removeprefix(b"data: ")
    assert json.loads(end)["usage"] == document["usage"]
