"""Whatever a model says: nothing raises, the pieces make no difference, no text is lost, and the work is linear."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from answers_templates import TEMPLATES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_answers_forms import joined

from answers_written import WRITTEN
from drivetrain.core.answer import ExtraField
from drivetrain.text.answers import FORMS, AnswerParser, parse_answer

CALLS = [("f", {"a": {"b": ["x", None]}, "c": 'say "hi" </x>\n'}), ("now", {})]


def halves(text: str) -> list[str]:
    return [text[i : i + size] for size in (5, 11, 24) for i in range(0, len(text), size)]


PARTS = {
    form: sorted(
        {
            part
            for name, write, reasoning in WRITTEN.values()
            if name == form
            for whole in (write(CALLS), reasoning)
            for part in (whole, *halves(whole))
            if part
        }
    )
    for form in FORMS
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_text(form: str, data: st.DataObject) -> None:
    piece = st.one_of(st.sampled_from(PARTS[form]), st.text(max_size=5), st.sampled_from(list('<>[]{}"\\,:=( )\n')))
    text = "".join(data.draw(st.lists(piece, max_size=15)))
    message = parse_answer(text, form=form)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=10)))
    parser = AnswerParser(form=form)
    events = [e for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) for e in parser.feed(text[a:b])]
    events += parser.finish()
    assert parser.message == joined(events) == message
    assert parse_answer(list(text), form=form) == message
    for call in message.tool_calls:
        if call.flaw is None:
            assert isinstance(json.loads(call.arguments), dict)
        else:
            assert call.raw
            assert call.raw in text


@given(text=st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_text_without_markers_is_content(text: str) -> None:
    plain = "".join(char for char in text if char not in "<[{")
    for form in FORMS:
        if "functools" not in plain and "to=" not in plain:
            assert (parse_answer(list(plain), form=form).content or "") == plain.strip()


NASTY = ["<", "[", "{", " ", '"', "\\", "<|", "<think>", "<tool_call>", "<tool_call>{", "[f(", '{"name": "', "\n", "a "]


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("form", FORMS)
def test_the_work_is_linear(form: str, nasty: str) -> None:
    """Lines of our code that run, which no busy machine can change."""
    for start, size in (("", 1), (WRITTEN_STARTS[form], 10_000)):
        few, many = (lines_run(form, start, nasty * num, size) for num in (30, 90))
        assert many < 4 * few + 1000, (start, size)


WRITTEN_STARTS = {form: write(CALLS)[:-12] for form, write, _ in reversed(WRITTEN.values())}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_work_is_linear_for_a_template(name: str) -> None:
    for nasty in ("<", "<think>", "<tool_call>", "<parameter=a>", " ", "<|channel|>commentary to=functions.f"):
        few, many = (lines_run(TEMPLATES[name], "", nasty * num, 1) for num in (30, 90))
        assert many < 4 * few + 1000, nasty


def lines_run(form: Any, start: str, text: str, size: int, tools: list[Any] | None = None) -> int:
    num = 0

    def count(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        nonlocal num
        num += event == "line"
        return count

    pieces = [start, *(text[i : i + size] for i in range(0, len(text), size))]
    before = sys.gettrace()
    sys.settrace(count)
    try:
        parse_answer(pieces, form=form, tools=tools)
    finally:
        sys.settrace(before)
    return num


@pytest.mark.parametrize("form", [*FORMS, *TEMPLATES])
def test_long_runs_end(form: str) -> None:
    for char in "<[{ ":
        parse_answer(char * 20_000, form=TEMPLATES.get(form, form))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_the_events_of_a_template_join_too(data: st.DataObject) -> None:
    text = "".join(
        data.draw(st.lists(st.sampled_from(["<n>4", "2</n>", "<f>", "1</f>", "<a>x", "ENDX", "z "]), max_size=9))
    )
    parser = AnswerParser(form=TEMPLATES["others"])
    events = [event for char in text for event in parser.feed(char)] + parser.finish()
    extra = {event.name: event.value for event in events if isinstance(event, ExtraField)}
    assert extra == parser.message.extra == parse_answer(text, form=TEMPLATES["others"]).extra
