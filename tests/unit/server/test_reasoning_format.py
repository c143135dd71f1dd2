"""How a chat's answer shows reasoning: whole and in chunks, which add up to the same message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from drivetrain.core.answer import AnswerEvent, AnswerMessage, ContentPiece, ReasoningPiece
from drivetrain.core.events import ChoiceFinished, Delta, Event, Started
from drivetrain.core.results import Choice, FinishReason, Metrics, Result, TokenLogprob, Usage
from drivetrain.server.format.chat import ChatFormatter
from drivetrain.server.parse.translate import ParsedRequest

Parts = tuple[AnswerEvent, ...]
THOUGHT: Sequence[tuple[str, Parts]] = (
    ("<think>", ()),
    ("Ea", (ReasoningPiece("Ea"),)),
    ("sy.</think>\n\nPa", (ReasoningPiece("sy."), ContentPiece("Pa"))),
    ("ris", (ContentPiece("ris"),)),
)
USAGE = Usage(3, 9, reasoning_tokens=4)


def formatter(**asked: bool) -> ChatFormatter:
    wanted: dict[str, Any] = {"include_usage": False, "logprobs": False, "token_ids": False} | asked
    return ChatFormatter("m", ParsedRequest((), n=1, stream=True, names={}, id="x", **wanted), created=1)


def chunks(deltas: Sequence[Delta], **asked: bool) -> list[dict[str, Any]]:
    made = formatter(**asked)
    events: list[Event] = [Started("x", "m", 3), *deltas, ChoiceFinished(0, FinishReason.STOP)]
    data = b"".join([made.format(0, [event]) for event in events]) + made.end(USAGE)
    lines = data.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def joined(sent: Sequence[dict[str, Any]], name: str) -> str:
    return "".join(choice["delta"].get(name) or "" for chunk in sent for choice in chunk["choices"])


def whole(message: AnswerMessage | None, text: str) -> dict[str, Any]:
    choice = Choice(0, text, finish_reason=FinishReason.STOP, message=message)
    result = Result("x", "m", (choice,), USAGE, Metrics())
    made: dict[str, Any] = formatter().whole([result], USAGE)
    return made


def test_chunks_have_reasoning_apart() -> None:
    sent = chunks([Delta(0, text, (i,), None, parts) for i, (text, parts) in enumerate(THOUGHT)])
    assert (joined(sent, "reasoning_content"), joined(sent, "content")) == ("Easy.", "Paris")
    assert [chunk["choices"][0]["delta"] for chunk in sent][1:-1] == [
        {"reasoning_content": "Ea"},
        {"reasoning_content": "sy."},
        {"content": "Pa"},
        {"content": "ris"},
    ]


ANSWERED: dict[str, Any] = {"role": "assistant", "refusal": None, "annotations": []}


def test_the_whole_message_is_what_the_chunks_add_up_to() -> None:
    answer = whole(AnswerMessage("Paris", "Easy."), "<think>Easy.</think>\n\nParis")
    message = answer["choices"][0]["message"]
    assert message == {**ANSWERED, "content": "Paris", "reasoning_content": "Easy."}
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_an_answer_that_was_only_thought_has_empty_content() -> None:
    message = whole(AnswerMessage(None, "Easy."), "<think>Easy.")["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "Easy.")


def test_without_reasoning_nothing_is_added() -> None:
    assert "reasoning_content" not in whole(None, "Paris")["choices"][0]["message"]
    assert whole(None, "Paris")["choices"][0]["message"]["content"] == "Paris"
    assert whole(AnswerMessage("Paris"), "Paris")["choices"][0]["message"] == {**ANSWERED, "content": "Paris"}


@pytest.mark.parametrize("asked", ["token_ids", "logprobs"])
def test_ids_and_logprobs_come_without_parts_too(asked: str) -> None:
    entry = TokenLogprob(7, "<think>", b"<think>", -0.5, (), 0)
    sent = chunks([Delta(0, "<think>", (7,), (entry,), ())], **{asked: True})
    (choice,) = sent[1]["choices"]
    assert choice["delta"] == {"content": ""}
    if asked == "token_ids":
        assert choice["token_ids"] == [7]
    else:
        assert choice["logprobs"]["content"][0]["token"] == "<think>"


def test_the_usage_of_a_stream_counts_reasoning() -> None:
    sent = chunks([Delta(0, "a", (1,), None, (ReasoningPiece("a"),))], include_usage=True)
    assert sent[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
