"""Answers read while they are detokenized: what a delta adds to the message, and which tokens are reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.answer import AnswerMessage
from drivetrain.core.events import Delta
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.results import FinishReason
from drivetrain.text.answers.parser import MessageBuilder
from drivetrain.text.answers.reading import AnswerReading, begun
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.choice import ChoiceText, StopRules

TOKENIZER = ByteTokenizer()
GENERIC = AnswerReading(form="generic")
THINKING = AnswerReading(form="generic", prefix="<think>\n")


def read(
    text: str,
    reading: AnswerReading = GENERIC,
    cuts: Sequence[int] = (),
    stop: Sequence[str] = (),
    reason: FinishReason = FinishReason.LENGTH,
) -> tuple[AnswerMessage, str, int]:
    """The message, the text and the number of reasoning tokens; a token is a byte."""
    rules = StopRules(strings=stop)
    choice = ChoiceText(
        0, tokenizer=TOKENIZER, detokenizer=TOKENIZER.detokenizer(), rules=rules, reader=reading.reader()
    )
    ids = list(text.encode())
    edges = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    deltas = [choice.feed(ids[a:b]) for a, b in pairwise(edges)]
    deltas.append(choice.finish(reason))
    given_out = [delta for delta in deltas if delta is not None]
    return _joined(given_out), "".join(delta.text for delta in given_out), choice.num_reasoning


def _joined(deltas: Sequence[Delta]) -> AnswerMessage:
    builder = MessageBuilder()
    for delta in deltas:
        assert delta.parts is not None
        for part in delta.parts:
            builder.add(part)
    return builder.message()


def test_reasoning_is_apart_from_the_content() -> None:
    answer = "<think>\nIt is easy.\n</think>\n\nParis."
    message, text, num_reasoning = read(answer)
    assert (message.reasoning, message.content) == ("It is easy.", "Paris.")
    assert text == answer
    assert num_reasoning == len("<think>\nIt is easy.\n</think>") - len("<think>") + 1


def test_the_prompt_may_have_begun_it() -> None:
    message, _, num_reasoning = read("Easy.\n</think>\n\nParis.", THINKING)
    assert (message.reasoning, message.content) == ("Easy.", "Paris.")
    assert num_reasoning == len("Easy.\n</think>")


def test_a_prompt_that_has_closed_it_wants_none() -> None:
    message, _, num_reasoning = read("Paris.", AnswerReading(form="generic", prefix="<think>\n\n</think>\n\n"))
    assert (message.reasoning, message.content, num_reasoning) == (None, "Paris.", 0)


@pytest.mark.parametrize(
    "answer", ["  Paris. \n", "\n\n", " ", "a  b\n", "<thin", "Paris.<thi", ' {"a": "<tool_call>"}']
)
def test_without_reasoning_the_content_is_the_text(answer: str) -> None:
    message, text, num_reasoning = read(answer)
    assert ((message.content or ""), text, num_reasoning) == (answer, answer, 0)


def test_calls_are_content() -> None:
    answer = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
    message, _, _ = read(answer)
    assert (message.content, message.tool_calls) == (answer, ())


def test_reasoning_that_is_never_closed() -> None:
    message, _, num_reasoning = read("and so on", THINKING)
    assert (message.reasoning, message.content, num_reasoning) == ("and so on", None, len("and so on"))


def test_a_stop_cuts_what_is_read() -> None:
    message, text, _ = read("Easy.</think>Paris. END more", THINKING, stop=["END"])
    assert (message.reasoning, message.content, text) == ("Easy.", "Paris. ", "Easy.</think>Paris. ")


ANSWERS = ["<think>a é 🙂</think>\n\nb <think>c</think> d ", "no </think> here", "  x</think>  y  ", "<think></think>"]


@given(
    answer=st.sampled_from(ANSWERS),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    prefix=st.sampled_from(["", "<think>\n"]),
    stop=st.sampled_from([(), ("y ", "</t"), ("🙂",)]),
)
def test_how_it_is_cut_makes_no_difference(answer: str, cuts: list[int], prefix: str, stop: tuple[str, ...]) -> None:
    reading = AnswerReading(form="generic", prefix=prefix)
    assert read(answer, reading, cuts, stop) == read(answer, reading, range(100), stop)


def test_special_tokens_are_known_by_their_ids() -> None:
    """A marker that is a special token has no text; text that spells it opens nothing."""
    tokenizer = _WithSpecials()
    reading = AnswerReading(form="generic", tokenizer=tokenizer)
    choice = ChoiceText(
        0, tokenizer=tokenizer, detokenizer=tokenizer.detokenizer(), rules=StopRules(), reader=reading.reader()
    )
    opens, closes = 300, 301
    ids = [opens, *b"<think>", closes, *b"</think>"]
    deltas = [choice.feed([i]) for i in ids] + [choice.finish(FinishReason.LENGTH)]
    message = _joined([delta for delta in deltas if delta is not None])
    assert (message.reasoning, message.content) == ("<think>", "</think>")
    assert choice.num_reasoning == 1 + len("<think>") + 1


class _WithSpecials(ByteTokenizer):
    special_strings = frozenset({"<think>", "</think>"})

    def id_of(self, token: str) -> int | None:
        return {"<think>": 300, "</think>": 301}.get(token, super().id_of(token))

    def is_special(self, token_id: int) -> bool:
        return token_id >= 300 or super().is_special(token_id)


def test_what_the_prompt_has_begun() -> None:
    ours, theirs = Segment("<|im_start|>assistant\n<think>\n"), Segment("<think>", literal=True)
    assert begun("generic", Prompt((Segment("a"), theirs, ours))) == "<think>\n"
    assert begun("generic", Prompt((Segment("<think>"), theirs))) == ""
    assert (
        begun("generic", Prompt((theirs, Segment("assistant\n<think>\n\n</think>\n\n")))) == "<think>\n\n</think>\n\n"
    )
    assert begun("llama-json", Prompt((ours,))) == ""
