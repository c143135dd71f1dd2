"""Every form, as text and as ids: answers cut off anywhere, arguments of all kinds, markers inside arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_answers_forms import CASES, joined, said
from test_answers_forms import read as read_text
from test_answers_ids import SPECIALS, Vocabulary
from test_answers_ids import read as read_ids

from answers_written import WRITTEN
from drivetrain.core.answer import AnswerMessage
from drivetrain.text.answers import AnswerParser, parse_answer

CALLS = [("f", {"a": 'x "ü"', "b": []}), ("g", {})]
SIZES = (1, 2, 3, 7)


def answer(written: str) -> tuple[str, str]:
    """The form, and an answer of all parts."""
    form, write, reasoning = WRITTEN[written]
    return form, reasoning.format("Hm.") + "So:\n" + write(CALLS)


def sizes(end: int) -> set[int]:
    """Every position gets single steps and one other size."""
    return {1, SIZES[end % len(SIZES)]}


@pytest.mark.parametrize("written", WRITTEN)
def test_an_answer_that_is_cut_off_reads_the_same_in_pieces(written: str) -> None:
    form, text = answer(written)
    for end in range(len(text)):
        whole = parse_answer(text[:end], form=form)
        for size in sizes(end):
            parser = AnswerParser(form=form)
            events = [event for at in range(0, end, size) for event in parser.feed(text[at : min(at + size, end)])]
            events += parser.finish()
            assert parser.message == joined(events) == whole, (text[:end], size)


@pytest.mark.parametrize("written", WRITTEN)
def test_ids_that_are_cut_off_read_as_their_text(written: str) -> None:
    form, text = answer(written)
    tokenizer = Vocabulary(SPECIALS[form])
    ids = tokenizer.ids(text)
    for end in range(len(text)):
        begun = tokenizer.ids(text[:end])
        if ids[: len(begun)] != begun:
            continue  # the text ends inside a special token
        expected = without_specials(parse_answer(text[:end], form=form), tokenizer)
        for size in {len(begun) + 1} | sizes(end):
            pieces = [begun[at : at + size] for at in range(0, len(begun), size)]
            assert parse_answer(pieces, form=form, tokenizer=tokenizer) == expected, (text[:end], size)


def without_specials(message: AnswerMessage, tokenizer: Vocabulary) -> AnswerMessage:
    """Special tokens that begin a marker which never came are content if they are text, and nothing if they are ids."""
    content = message.content or ""
    for special in tokenizer.special_strings:
        content = content.replace(special, "")
    return replace(message, content=content.rstrip() or None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("written", WRITTEN)
def test_arguments_of_all_kinds_as_ids(written: str, case: str) -> None:
    form, write, _ = WRITTEN[written]
    message = read_ids(write(CASES[case]), form)
    assert said(message) == [(name, dict(arguments)) for name, arguments in CASES[case]]
    assert (message.content, message.reasoning) == (None, None)


BETWEEN_TAGS = ("qwen-xml", "glm", "deepseek-v3.2", "deepseek-v4", "deepseek-v4.1", "kimi-k3")


@pytest.mark.parametrize("written", [written for written in WRITTEN if written not in BETWEEN_TAGS])
def test_arguments_may_spell_markers_as_text(written: str) -> None:
    """A string ends only at its quote, whatever it holds."""
    form, write, _ = WRITTEN[written]
    spelled = " ".join(special for special in SPECIALS[form] if special != '<|"|>')
    assert said(read_text(write([("f", {"a": spelled})]), form)) == [("f", {"a": spelled})]


@pytest.mark.parametrize("written", BETWEEN_TAGS)
def test_text_between_tags_may_spell_all_markers_but_its_end(written: str) -> None:
    form, write, _ = WRITTEN[written]
    spelled = " ".join(special for special in SPECIALS[form] if special != "</arg_value>")
    assert said(read_text(write([("f", {"a": spelled})]), form)) == [("f", {"a": spelled})]
