"""Templates and answers of all the shapes that transformers has tests for: the same message as its own parser's."""

from __future__ import annotations

from typing import Any

import pytest
from answers_shapes import CASES, COHERE_CALL, GROWING, QUOTED, UNTYPED, Template, template
from answers_templates import CONTENT_CALL, TEMPLATES
from test_answers_response_template import as_theirs, cut, oracle

from drivetrain.core.answer import AnswerMessage, ContentPiece, ExtraField, Flaw
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.answers import AnswerParser, parse_answer


@pytest.mark.parametrize("case", CASES)
def test_the_message_is_theirs_wherever_the_text_is_cut(case: str) -> None:
    form, answer, prompt = CASES[case]
    expected = oracle(answer, form, prefix=prompt)
    assert expected or case in ("nothing", "an empty list of calls")
    for pieces in cut(answer):
        assert as_theirs(parse_answer(pieces, form=form, prefix=prompt)) == expected, pieces


def tools(**properties: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}]


def tagged(**values: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"


ALARM = tools(hour={"type": "integer"}, on={"type": "boolean"}, label={"type": "string"})
MAYBE = {"type": ["integer", "null"]}
UNION = tools(label={"anyOf": [{"type": "string"}, {"type": "object"}]})
MERGED = TEMPLATES["merged"]
LINES = TEMPLATES["lines"]
CAST: dict[str, tuple[Template, str, list[dict[str, Any]]]] = {
    "strings": (UNTYPED, tagged(hour="7", on="true", label="wake up"), ALARM),
    "without tools": (UNTYPED, tagged(hour="7", on="true", label="wake up"), []),
    "of another tool": (UNTYPED, tagged(hour="7").replace("=f>", "=g>"), ALARM),
    "not declared": (UNTYPED, tagged(more="7"), ALARM),
    "what the values' parser left": (TEMPLATES["qwen3-xml"], tagged(hour="007", on="true", label="x"), ALARM),
    "what the values' parser has read": (TEMPLATES["qwen3-xml"], tagged(label="1.50"), ALARM),
    "a string that looks like a number": (UNTYPED, tagged(label="1.50"), ALARM),
    "text of a union": (UNTYPED, tagged(label="1.50"), UNION),
    "an object of a union": (UNTYPED, tagged(label='{"a": 1}'), UNION),
    "lines": (LINES, "<tool_call>\n<function=f>\nhour: 7\non: true\n</tool_call>", ALARM),
    "twice": (MERGED, tagged(hour="7").replace("</function>", "<parameter=hour>9</parameter></function>"), ALARM),
    "twice, and one that does not fit": (
        MERGED, tagged(hour="7").replace("</function>", "<parameter=hour>x</parameter></function>"), ALARM,
    ),
    "already typed": (
        TEMPLATES["cohere"], f"<|START_ACTION|>[{COHERE_CALL}]<|END_ACTION|>", tools(days={"type": "string"}),
    ),
    "none": (UNTYPED, tagged(label="null"), tools(label={"type": ["string", "null"]})),
    "none, or a number": (UNTYPED, tagged(a="5", b="null"), tools(a=MAYBE, b=MAYBE)),
    "a field that is no call": (QUOTED, "<quote of=f><label>1.50</label><hour>7</hour></quote>", ALARM),
    "a schema without types": (UNTYPED, tagged(a="7"), tools(a={"description": "any"})),
}  # fmt: skip


@pytest.mark.parametrize("case", CAST)
def test_arguments_are_cast_as_theirs(case: str) -> None:
    form, answer, offered = CAST[case]
    expected = oracle(answer, form, tools=offered)
    for pieces in cut(answer):
        assert as_theirs(parse_answer(pieces, form=form, tools=offered)) == expected, pieces


@pytest.mark.parametrize("path", ["{content.missing}", "{content.name.x}", "{missing}"])
def test_a_path_that_leads_nowhere_is_told(path: str) -> None:
    """Theirs raises. Here a call has a flaw, and another field keeps its text."""
    field = {"open": "<x>", "close": "</x>", "content": "json"}
    answer = '<x>{"name": "n"}</x>'
    kept, call = (
        template(**{name: {**field, "transform": {"function": {"name": path, "arguments": {}}}}})
        for name in ("data", "tool_calls")
    )
    for form in (kept, call):
        with pytest.raises((ValueError, KeyError)):
            oracle(answer, form)
    assert parse_answer(answer, form=kept).extra == {"data": '{"name": "n"}'}
    assert [(one.flaw, one.raw) for one in parse_answer(answer, form=call).tool_calls] == [(Flaw.MALFORMED, answer)]


def test_a_field_that_must_come_may_be_missing() -> None:
    """Theirs raises: the answer of a model is no request, so there is nobody to refuse."""
    form = template(content={"open": "<r>", "close": "</r>", "optional": False})
    with pytest.raises(ValueError, match="Required"):
        oracle("none", form)
    assert parse_answer("none", form=form) == AnswerMessage()
    assert parse_answer("<r>one</r>", form=form) == AnswerMessage(content="one")


def test_what_needs_backtracking_is_refused() -> None:
    options = {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\1>"}
    form = template(x={"open": "<x>", "close": "</x>", "content": "xml-inline", "content_args": options})
    assert oracle("<x><a>1</a></x>", form) == {"x": {"a": "1"}}
    with pytest.raises(InvalidRequest, match=r"\\1 is not supported"):
        parse_answer("", form=form)


def test_what_can_be_no_marker_is_given_out_at_once() -> None:
    parser = AnswerParser(form=TEMPLATES["gemma4"])
    events = parser.feed("x" * 32)
    assert "".join(event.text for event in events if isinstance(event, ContentPiece)) == "x" * 32


def test_a_marker_that_could_grow_is_held() -> None:
    parser = AnswerParser(form=GROWING)
    assert parser.feed("<x>hiEND") == []
    assert parser.feed(" more") == [ExtraField("x", "hi")]


def test_a_name_that_is_no_string_is_a_flaw() -> None:
    """Theirs gives it out as it is."""
    form = template(tool_calls={"open": "<c>", "close": "</c>", "content": "json", "transform": CONTENT_CALL})
    answer = '<c>{"name": ["f"], "arguments": {"hour": "7"}}</c>'
    assert oracle(answer, form, tools=ALARM)["tool_calls"]["function"]["name"] == ["f"]
    assert [call.flaw for call in parse_answer(answer, form=form, tools=ALARM).tool_calls] == [Flaw.MALFORMED]


def test_half_a_surrogate_is_never_text() -> None:
    """A string of JSON may hold one as an escape: it stays JSON, and a name with one has a flaw."""
    form = template(
        content={"open": "<r>", "close": "</r>", "content": "json", "transform": "{content.text}"},
        thinking={"open": "<t>", "close": "</t>", "content": "json"},
        tool_calls={"open": "<c>", "close": "</c>", "repeats": True, "content": "json", "transform": CONTENT_CALL},
    )
    calls = (r'<c>{"name": "f\ud83d", "arguments": {}}</c>', r'<c>{"name": "f", "arguments": {"a": "\ude00"}}</c>')
    message = parse_answer(r'<r>{"text": "a\ud83d"}</r><t>"\ude00"</t>' + "".join(calls), form=form)
    assert (message.content, message.reasoning) == (r'"a\ud83d"', r'"\ude00"')
    assert [(call.name, call.flaw) for call in message.tool_calls] == [("", Flaw.MALFORMED), ("f", None)]
    assert message.tool_calls[1].arguments == r'{"a": "\ude00"}'
