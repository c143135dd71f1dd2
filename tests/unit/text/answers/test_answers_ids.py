"""Ids with a tokenizer: markers that are special tokens are found by their ids, and text that spells one stays text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from answers_templates import ANSWERS, TEMPLATES

from answers_written import WRITTEN
from drivetrain.core.answer import AnswerMessage, Flaw
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Detokenizer
from drivetrain.text.answers import AnswerParser, parse_answer
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.detokenizers import TableDetokenizer

SPECIALS = {
    "hermes": ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>"),
    "qwen-xml": ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>"),
    "llama-json": ("<|python_tag|>", "<|eot_id|>", "<|eom_id|>"),
    "llama-pythonic": ("<|python_start|>", "<|python_end|>", "<|eot|>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "</s>"),
    "deepseek-r1": (
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>", "<think>", "</think>",
    ),
    "glm": (
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
    "harmony": ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>", "<|constrain|>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<turn|>", "<|tool_response>"),
    "phi4": ("<|tool_call|>", "<|/tool_call|>", "<|end|>"),
    "granite": ("<|tool_call|>", "<|end_of_text|>", "<think>", "</think>"),
    "kimi-k3": ("<|open|>", "<|close|>", "<|sep|>"),
    "deepseek-v3.2": ("｜DSML｜", "<think>", "</think>", "<｜end▁of▁sentence｜>"),
}  # fmt: skip
SPECIALS["deepseek-v4"] = SPECIALS["deepseek-v4.1"] = SPECIALS["deepseek-v3.2"]
SPECIALS["deepseek-v3.1"] = SPECIALS["deepseek-r1"]
SPECIALS["generic"] = SPECIALS["hermes"]
SPECIALS["mistral-list"] = SPECIALS["mistral"]
SPECIALS["granite-4"] = SPECIALS["granite"]

LITERAL = "\ue000"
"""In a test's text, what follows is not a special token."""


class Vocabulary(ByteTokenizer):
    """Bytes and these special tokens."""

    def __init__(self, specials: Sequence[str]) -> None:
        self._specials = (*specials, "<unused>")
        self.special_strings = frozenset(self._specials)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            spelled = max((s for s in self._specials if text.startswith(s, at)), key=len, default=None)
            if text[at] == LITERAL:
                ids += text[at + 1].encode()
                at += 2
            elif spelled is None:
                ids += text[at].encode()
                at += 1
            else:
                ids.append(256 + self._specials.index(spelled))
                at += len(spelled)
        return ids

    def id_of(self, token: str) -> int | None:
        return 256 + self._specials.index(token) if token in self._specials else None

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        return TableDetokenizer(lambda token_id: bytes([token_id]) if token_id < 256 else b"", strip_first=False)


def cut(ids: Sequence[int]) -> Iterable[list[Sequence[int]]]:
    for size in (1, 2, 3, 7, len(ids) + 1):
        yield [ids[i : i + size] for i in range(0, len(ids), size)]


def read(text: str, form: str, prefix: str = "") -> AnswerMessage:
    tokenizer = Vocabulary(SPECIALS[form])
    ids = tokenizer.ids(text)
    whole = parse_answer(ids, form=form, tokenizer=tokenizer, prefix=prefix)
    for pieces in cut(ids):
        assert parse_answer(pieces, form=form, tokenizer=tokenizer, prefix=prefix) == whole
    return whole


CALLS = [("f", {"a": {"b": ["x", "ü 東"]}, "c": "1 2"}), ("g", {})]


@pytest.mark.parametrize("written", WRITTEN)
def test_ids_read_as_their_text(written: str) -> None:
    form, write, reasoning = WRITTEN[written]
    text = reasoning.format("Hm.") + "Before.\n" + write(CALLS) + "\nAfter."
    message = read(text, form)
    assert message == parse_answer(text, form=form)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == CALLS


@pytest.mark.parametrize("form", SPECIALS)
def test_text_that_spells_a_marker_stays_text(form: str) -> None:
    spelled = " and ".join(SPECIALS[form])
    text = "".join(LITERAL + char for char in spelled)
    assert read(text, form).content == spelled


@pytest.mark.parametrize("written", WRITTEN)
def test_arguments_and_reasoning_may_spell_markers(written: str) -> None:
    form, write, reasoning = WRITTEN[written]
    spelled = " ".join(SPECIALS[form])
    hidden = "".join(LITERAL + char for char in spelled)
    mark = "MARK"
    text = (reasoning.format("R " + mark) + write([("f", {"a": mark + "!"})])).replace(
        mark, hidden.replace(LITERAL + '"', LITERAL + '\\"' if form != "gemma4" else LITERAL + '"')
    )
    message = read(text, form)
    assert message.reasoning in (f"R {spelled}", None)
    assert [(call.name, json.loads(call.arguments), call.flaw) for call in message.tool_calls] == [
        ("f", {"a": spelled + "!"}, None)
    ]


def test_a_special_token_without_meaning_adds_no_text() -> None:
    assert read("a<unused>b", "hermes").content == "ab"
    assert read("a</think>b", "hermes").content == "ab"


def test_a_special_token_ends_a_value_that_it_cannot_be_part_of() -> None:
    message = read('<tool_call>{"name": "f", "arguments": {"a": "cut</tool_call>after', "hermes")
    (call,) = message.tool_calls
    assert (call.name, call.flaw, message.content) == ("f", Flaw.MALFORMED, "after")
    assert call.raw == '<tool_call>{"name": "f", "arguments": {"a": "cut</tool_call>'


def test_a_prompt_spells_its_tokens() -> None:
    assert read("Hm.</think>Yes.", "hermes", prefix="<think>\n") == AnswerMessage(content="Yes.", reasoning="Hm.")


def test_markers_that_are_no_special_tokens_are_found_in_the_text() -> None:
    tokenizer = Vocabulary(())
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse_answer(tokenizer.ids(text), form="hermes", tokenizer=tokenizer) == parse_answer(text, form="hermes")


TEMPLATE_SPECIALS = {
    "gpt-oss": SPECIALS["harmony"],
    "gemma4": SPECIALS["gemma4"],
    "smollm": SPECIALS["hermes"],
    "qwen3": SPECIALS["hermes"],
    "inkling": ("<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|end_message|>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>"),
}


@pytest.mark.parametrize("name", TEMPLATE_SPECIALS)
def test_a_response_template_reads_ids(name: str) -> None:
    tokenizer = Vocabulary(TEMPLATE_SPECIALS[name])
    for answer in ANSWERS[name]:
        expected = parse_answer(answer, form=TEMPLATES[name])
        for pieces in cut(tokenizer.ids(answer)):
            assert parse_answer(pieces, form=TEMPLATES[name], tokenizer=tokenizer) == expected


def test_half_a_character_is_held() -> None:
    tokenizer = Vocabulary(())
    parser = AnswerParser(form="hermes", tokenizer=tokenizer)
    events = [parser.feed(token_id) for token_id in "é".encode()]
    assert [len(each) for each in events] == [0, 1]


def test_a_special_token_ends_half_a_character() -> None:
    tokenizer = Vocabulary(SPECIALS["hermes"])
    ids = [*tokenizer.ids("<think>a"), "é".encode()[0], *tokenizer.ids("</think>b")]
    for pieces in cut(ids):
        message = parse_answer(pieces, form="hermes", tokenizer=tokenizer)
        assert (message.reasoning, message.content) == ("a\ufffd", "b")


def test_text_and_ids_are_not_mixed() -> None:
    with pytest.raises(InvalidRequest, match="needs a tokenizer"):
        parse_answer([1, 2], form="hermes")
    with pytest.raises(InvalidRequest, match="given as ids"):
        parse_answer("text", form="hermes", tokenizer=Vocabulary(()))
