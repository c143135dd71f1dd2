"""Each form: what it writes is read back, whole and in pieces, and what is wrong with a call is told."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterable
from typing import Any

import pytest

import drivetrain
from answers_written import WRITTEN, Calls
from drivetrain.core.answer import (
    AnswerEvent,
    AnswerMessage,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ContentPiece,
    Flaw,
    ReasoningPiece,
    ToolCall,
)
from drivetrain.core.errors import InvalidRequest
from drivetrain.text.answers import FORMS, AnswerParser, parse_answer, parser
from drivetrain.text.answers.forms import Part

NESTED = {"a": {"b": [1, -2.5, {"c": []}], "d": None}, "e": 'say "hi"\\now', "f": "two\nlines\tand\ttabs", "g": [True]}
CASES: dict[str, Calls] = {
    "one": [("get_weather", {"city": "Paris"})],
    "two": [("get_weather", {"city": "Paris", "days": 2}), ("now", {"zone": "UTC"})],
    "nested and escaped": [("f", NESTED), ("g", {"x": "a, b) } ] </x> {y}"})],
    "unicode": [("wetter", {"ort": "Zürich 東京 🗼", "straße": "ß"})],
    "empty": [("now", {}), ("f", {"a": {}, "b": []})],
}


def pieces(text: str) -> Iterable[list[str]]:
    yield [text]
    yield from ([text[i : i + size] for i in range(0, len(text), size)] for size in (1, 2, 3, 7))


def joined(events: Iterable[AnswerEvent]) -> AnswerMessage:
    """The message that the events make, and that they come in order."""
    content = reasoning = ""
    calls: list[ToolCall] = []
    name: str | None = None
    arguments = ""
    for event in events:
        match event:
            case ContentPiece(text):
                assert text
                content += text
            case ReasoningPiece(text):
                assert text
                reasoning += text
            case CallBegun(index, name):
                assert index == len(calls)
                arguments = ""
            case ArgumentsPiece(index, text):
                assert text
                assert (index, name is not None) == (len(calls), True)
                arguments += text
            case CallEnded(index, flaw, raw):
                assert index == len(calls)
                assert name is not None
                calls.append(ToolCall(index, name, arguments, flaw, raw))
                name = None
            case _:
                raise AssertionError(event)
    assert name is None
    return AnswerMessage(content or None, reasoning or None, tuple(calls))


def read(text: str, form: str, **more: Any) -> AnswerMessage:
    """Whole and in pieces, from the events and from the message."""
    whole = parse_answer(text, form=form, **more)
    for cut in pieces(text):
        reader = AnswerParser(form=form, **more)
        events = [event for piece in cut for event in reader.feed(piece)]
        events += reader.finish()
        assert reader.message == whole, cut
        assert joined(events) == whole, cut
    for call in whole.tool_calls:
        assert (call.flaw is None) == (call.raw is None)
        if call.flaw is None:
            assert isinstance(json.loads(call.arguments), dict)
            assert call.name
    return whole


def said(message: AnswerMessage) -> list[tuple[str, Any]]:
    assert not [call for call in message.tool_calls if call.flaw]
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def test_every_form_is_tested() -> None:
    assert {form for form, _, _ in WRITTEN.values()} == set(FORMS)
    assert [form.name for form in FORMS.values()] == list(FORMS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("written", WRITTEN)
def test_calls_alone(written: str, case: str) -> None:
    form, write, _ = WRITTEN[written]
    message = read(write(CASES[case]), form)
    assert said(message) == [(name, dict(arguments)) for name, arguments in CASES[case]]
    assert (message.content, message.reasoning) == (None, None)


@pytest.mark.parametrize("written", WRITTEN)
def test_text_before_and_after(written: str) -> None:
    form, write, _ = WRITTEN[written]
    message = read(f"Let me look.\n{write(CASES['two'])}\nThere < it is.\n", form)
    assert said(message) == CASES["two"]
    assert message.content is not None
    assert message.content.split() == ["Let", "me", "look.", "There", "<", "it", "is."]


@pytest.mark.parametrize("written", [name for name, (_, _, reasoning) in WRITTEN.items() if reasoning])
def test_reasoning_before_a_call(written: str) -> None:
    form, write, reasoning = WRITTEN[written]
    thought = "First < then\n\n[a] {b}."
    message = read(reasoning.format(thought) + "So:\n" + write(CASES["one"]), form)
    assert (message.reasoning, message.content, said(message)) == (thought, "So:", CASES["one"])


@pytest.mark.parametrize("written", [name for name, (_, _, reasoning) in WRITTEN.items() if reasoning])
def test_reasoning_that_the_prompt_began(written: str) -> None:
    form, write, reasoning = WRITTEN[written]
    begun, _, rest = reasoning.format("<cut>First.").partition("<cut>")
    message = read(rest + write(CASES["one"]), form, prefix=begun)
    assert (message.reasoning, message.content, said(message)) == ("First.", None, CASES["one"])


@pytest.mark.parametrize("case", ["two", "nested and escaped"])
@pytest.mark.parametrize("written", WRITTEN)
def test_an_answer_that_is_cut_off(written: str, case: str) -> None:
    """At every position: the calls that were whole stay, the last one is told as cut off, and no text is lost."""
    form, write, _ = WRITTEN[written]
    text, calls = write(CASES[case]), CASES[case]
    for end in range(len(text)):
        message = parse_answer(text[:end], form=form)
        whole = [call for call in message.tool_calls if call.flaw is None]
        assert [(call.name, json.loads(call.arguments)) for call in whole] == calls[: len(whole)]
        broken = message.tool_calls[len(whole) :]
        assert [call.flaw for call in broken] in ([], [Flaw.CUT_OFF]), text[:end]
        for call in broken:
            assert call.raw
            assert text[:end].endswith(call.raw)
            assert calls[len(whole)][0] == call.name or not call.name


@pytest.mark.parametrize("written", WRITTEN)
def test_half_of_the_marker_that_closes_a_call_is_no_text(written: str) -> None:
    form, write, _ = WRITTEN[written]
    text = write(CASES["one"])
    closes = {close for region in FORMS[form].regions if region.part is Part.CALLS for close in region.closes}
    for close in closes:
        _, found, _ = text.partition(close)
        for i in range(1, len(found)):
            cut = text[: text.index(close) + i]
            assert read(cut, form).content is None, cut


@pytest.mark.parametrize("written", WRITTEN)
def test_arguments_stream(written: str) -> None:
    """A long argument is given out long before it ends."""
    form, write, _ = WRITTEN[written]
    tools = [{"function": {"name": "f", "parameters": {"properties": {"text": {"type": "string"}}}}}]
    text = write([("f", {"text": "word " * 200})])
    events = AnswerParser(form=form, tools=tools).feed(text[: len(text) // 2])
    given = "".join(event.text for event in events if isinstance(event, ArgumentsPiece))
    assert len(given) > 300


@pytest.mark.parametrize(
    ("form", "text", "name", "rest"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>', "f", "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "f", "</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "", "</tool_call>"),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>', "", "</tool_call>"),
        ("hermes", "<tool_call>f(x)</tool_call>", "", "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "args": {"a": 1}}</tool_call>', "f", "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "f", "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>', "f", "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 500 + "</tool_call>", "f", "</tool_call>"),
        ("qwen-xml", "<tool_call><function=f><parameter=a>1</parameter>x</function></tool_call>", "f", "</tool_call>"),
        ("qwen-xml", '<tool_call>{"name": "f"}</tool_call>', "", "</tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key>1</tool_call>", "f", "</tool_call>"),
        ("mistral", "[TOOL_CALLS]f(1)", "", ""),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}} x', "", ""),
        ("llama-pythonic", "[f(a=1), g(b=x)]", "g", ""),
        ("llama-pythonic", "[f(a=1), g(1)]", "g", ""),
        ("llama-json", '<|python_tag|>print("hi")', "", ""),
        ("deepseek-v3.1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>nothing<｜tool▁call▁end｜>", "", "<｜tool▁call▁end｜>"),
        ("kimi", "<|tool_call_begin|>f<|tool_call_end|>", "", "<|tool_call_end|>"),
        ("harmony", "<|channel|>commentary to=python<|message|>print(1)<|call|>", "python", "<|call|>"),
        ("gemma4", "<|tool_call>call:f{a:b c}<tool_call|>", "f", "<tool_call|>"),
        ("phi4", '<|tool_call|>[{"name": 1}]<|/tool_call|>', "", "<|/tool_call|>"),
    ],
)
def test_a_malformed_call_is_told_with_its_text(form: str, text: str, name: str, rest: str) -> None:
    message = read(f"{text} Text after." if rest else text, form)
    call = message.tool_calls[-1]
    assert (call.name, call.flaw) == (name, Flaw.MALFORMED)
    assert call.raw
    assert text.endswith(call.raw)
    assert message.content == ("Text after." if rest else None)


def test_after_a_malformed_call_the_next_one_is_read() -> None:
    text = '<tool_call>{"name": oops <tool_call>{"name": "f", "arguments": {}}</tool_call> done'
    message = read(text, "hermes")
    assert [(call.name, call.flaw) for call in message.tool_calls] == [("", Flaw.MALFORMED), ("f", None)]
    assert message.tool_calls[0].raw == '<tool_call>{"name": oops '
    assert message.content == "done"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama-json", '{"name": "f", "parameters": {x}}'),
        ("llama-pythonic", "[f(a=b)]"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {x}}'),
        ("qwen-xml", "<tool_call><function=f><parameter=a>1</parameter>x"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{x}"),
        ("kimi", "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{x}"),
        ("gemma4", "<|tool_call>call:f{a:b c}"),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {x}}]'),
    ],
)
def test_what_follows_a_malformed_call_is_content(form: str, text: str) -> None:
    """The call belongs to its line, if nothing closes it."""
    then = ["Here is", "the answer."]
    message = read("\n".join(("Before.", text, *then)), form)
    (call,) = message.tool_calls
    assert (call.name, call.flaw, (call.raw or "").lstrip()) == ("f", Flaw.MALFORMED, text)
    assert (message.content or "").split("\n") in (["Before.", *then], ["Before.", "", *then])


PRETTY = """{
  "name": "f",
  "arguments": {
    "a": 01,
    "b": 2,

    "c": [
      -1,
      true,
      "d"
    ]
  }
}"""


@pytest.mark.parametrize(("form", "marker"), [("hermes", "<tool_call>"), ("llama-json", "<|python_tag|>")])
def test_a_malformed_call_on_several_lines_has_none_of_them_as_content(form: str, marker: str) -> None:
    """Wherever the answer is cut off, too."""
    for end in range(len(PRETTY) + 1):
        assert read(marker + PRETTY[:end], form).content is None, PRETTY[:end]
    message = read(f"{marker}{PRETTY}\n\n- Here is\n1 answer.", form)
    (call,) = message.tool_calls
    assert (call.name, call.flaw, call.raw) == ("f", Flaw.MALFORMED, marker + PRETTY)
    assert message.content == "- Here is\n1 answer."
    for then in ("nullable, so.", "Trust me."):
        assert read(f"{marker}{PRETTY}\n{then}", form).content == then


def test_what_follows_a_malformed_call_may_be_another_region() -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{x}"
    message = read(f"{call}<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>Yes.", "harmony")
    assert [(call.name, call.flaw) for call in message.tool_calls] == [("f", Flaw.MALFORMED)]
    assert (message.reasoning, message.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "a </tool half <tool_cal <think"),
        ("llama-json", '{"name": "Bob", "age": 7}'),
        ("llama-json", 'See {"name": "f", "parameters": {}}'),
        ("llama-json", '[{"name": "f", "parameters": {}}]'),
        ("llama-pythonic", "[f(x) for x in y]"),
        ("llama-pythonic", "[f(a == 1)] and [link](url)"),
        ("llama-pythonic", "x = [f(a=1)]"),
        ("mistral", "[TOOL_CALL] [ARGS]{}"),
        ("harmony", "Just text to=functions.f"),
        ("phi4", "import functools"),
        ("glm", "<arg_key>a</arg_key>"),
    ],
)
def test_what_is_not_a_call_is_content(form: str, text: str) -> None:
    assert read(text, form) == AnswerMessage(content=text)


def test_calls_without_a_marker_need_the_name_of_a_tool() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = '{"name": "g", "parameters": {}}'
    assert read(text, "llama-json", tools=tools).content == text
    assert said(read(text, "llama-json")) == [("g", {})]
    assert read("[g(a=1)]", "llama-pythonic", tools=tools).content == "[g(a=1)]"
    assert said(read("[f(a=1)]", "llama-pythonic", tools=tools)) == [("f", {"a": 1})]


F, G = '{"name": "f", "arguments": {}}', '{"name": "g", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "id": [{}], "name": "f"}</tool_call>', [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "parameters": {}}', [("f", {})]),
        ("hermes", '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>', [("f", {}), ("g", {})]),
        ("qwen-xml", "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>", [("f", {"a": "x"})]),
        ("qwen-xml", "<tool_call><function=f></tool_call>", [("f", {})]),
        ("llama-json", '<|python_tag|>{"name": "f", "parameters": {}}<|eom_id|>', [("f", {})]),
        ("llama-json", '{"type": "function", "name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})]),
        ("llama-pythonic", "<|python_start|>[f(a='it\\'s', b=True,)]<|python_end|>", [("f", {"a": "it's", "b": True})]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]Ab3[ARGS]{"a": 1}</s>', [("f", {"a": 1})]),
        ("mistral", '[TOOL_CALLS]f{"a": 1}', [("f", {"a": 1})]),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', [("f", {"a": 1})]),
        ("deepseek-r1", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```", [("f", {})]),
        ("glm", "<tool_call>f</tool_call>", [("f", {})]),
        ("kimi", "<|tool_call_begin|>f <|tool_call_argument_begin|> {}<|tool_call_end|>", [("f", {})]),
        ("harmony", " to=functions.f<|channel|>commentary<|message|>{}", [("f", {})]),
        ("harmony", "<|channel|>analysis to=browser.search code<|message|>{}<|call|>", [("browser.search", {})]),
        ("granite", '<tool_call>[{"name": "f", "arguments": {}}]', [("f", {})]),
        ("gemma4", '<|tool_call>call:f{a key:<|"|>x<|"|>, b c :1}<tool_call|>', [("f", {"a key": "x", "b c": 1})]),
        ("deepseek-v3.2", '<｜DSML｜invoke name="submit"/>', [("submit", {})]),
        ("deepseek-v4", '<｜DSML｜invoke name="f">\n</｜DSML｜invoke>', [("f", {})]),
        ("kimi-k3", '<|open|>call tool="f"<|sep|><|close|>call<|sep|>', [("f", {})]),
        ("hermes", f"<tool_call>{F}{G}</tool_call>", [("f", {}), ("g", {"a": 1})]),
        ("hermes", f"<tool_call>\n{F}\n{G}\n{F}", [("f", {}), ("g", {"a": 1}), ("f", {})]),
        ("phi4", f"<|tool_call|>{F} {G}<|/tool_call|>", [("f", {}), ("g", {"a": 1})]),
    ],
)
def test_other_ways_to_write_a_call(form: str, text: str, calls: Calls) -> None:
    assert said(read(text, form)) == calls


def test_what_follows_a_call_before_its_end() -> None:
    message = read(f'<tool_call>{F}{{"id": x}}</tool_call>Hm', "hermes")
    assert [(call.name, call.flaw, call.raw) for call in message.tool_calls] == [
        ("f", None, None),
        ("", Flaw.MALFORMED, '{"id": x}</tool_call>'),
    ]
    assert message.content == "Hm"
    assert read(f"<tool_call>{F} so {G}", "hermes").content == f"so {G}"
    assert read(f"<|python_tag|>{F} {{x}}", "llama-json").content == "{x}"


@pytest.mark.parametrize("rest", ['{"result": 1}\nrest', "{x}", "{}", '{ "names": []}'])
def test_an_object_behind_a_call_that_begins_like_none_is_content(rest: str) -> None:
    for pieces in ([f"<tool_call>{F}\n{rest}"], list(f"<tool_call>{F}\n{rest}")):
        message = parse_answer(pieces, form="hermes")
        assert (said(message), message.content) == ([("f", {})], rest)


@pytest.mark.parametrize("cut", ["{", "{ ", '{"', '{\n "nam', '{"name"', '{"type": "fun'])
def test_an_object_behind_a_call_that_is_cut_off_is_no_content(cut: str) -> None:
    message = read(f"<tool_call>{F}\n{cut}", "hermes")
    assert [(call.name, call.flaw) for call in message.tool_calls] == [("f", None), ("", Flaw.CUT_OFF)]
    assert message.content is None


def test_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        "<|start|>assistant<|channel|>final <|constrain|>json<|message|>{}<|return|>"
    )
    assert read(text, "harmony") == AnswerMessage(content="Wait.\n\n{}", reasoning="One.\n\nTwo.")


SCHEMA = {
    "number": {"type": "number"},
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "free": {},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": SCHEMA}}}]


@pytest.mark.parametrize("written", ["qwen-xml", "glm"])
def test_arguments_between_tags_have_the_types_of_the_schema(written: str) -> None:
    form, write, _ = WRITTEN[written]
    arguments = {"number": "7", "text": "7", "flag": "True", "object": '{"a": 1}', "free": "[1]", "other": "1 2"}
    expected = {"number": 7, "text": "7", "flag": True, "object": {"a": 1}, "free": [1], "other": "1 2"}
    assert said(read(write([("f", arguments)]), form, tools=TOOLS)) == [("f", expected)]
    unfit = {"number": "x", "flag": "maybe", "object": "[a]"}
    assert said(read(write([("f", unfit)]), form, tools=TOOLS)) == [("f", unfit)]
    untyped = {"number": 7, "text": 7, "flag": "True", "object": {"a": 1}, "free": [1], "other": "1 2"}
    assert said(read(write([("f", arguments)]), form)) == [("f", untyped)]


@pytest.mark.parametrize("value", ['{"a": NaN}', '{"a": 1e999}', "[" * 5000, '{"a": "\\ud800"}'])
def test_arguments_between_tags_are_json_whatever_their_value(value: str) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(5000):
        deep = {"anyOf": [deep]}
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "object"}, "b": deep, "c": {"type": "array"}}}}]
    text = WRITTEN["glm"][1]([("f", dict.fromkeys("abcd", value))])
    (call,) = read(text, "glm", tools=tools).tool_calls
    assert set(json.loads(call.arguments, parse_constant=lambda _: 1 / 0)) == set("abcd")
    call.arguments.encode()


def test_text_between_tags_keeps_its_lines() -> None:
    code = "\n  def f():\n    return '<x>'\n\n"
    text = WRITTEN["qwen-xml"][1]([("f", {"text": code})])
    assert said(read(text, "qwen-xml", tools=TOOLS)) == [("f", {"text": code})]


@pytest.mark.parametrize("written", ["deepseek-v3.2", "deepseek-v4", "deepseek-v4.1", "kimi-k3"])
def test_arguments_that_say_what_they_are(written: str) -> None:
    """Whatever the schema says; what claims to be JSON and is not is a text."""
    form, write, _ = WRITTEN[written]
    arguments = {"number": 7, "text": "7", "flag": "true", "object": {"a": "</x>"}, "free": None, "other": "[1]"}
    assert said(read(write([("f", arguments)]), form, tools=TOOLS)) == [("f", arguments)]
    text = write([("f", {"free": 7})])
    assert said(read(text.replace("7", "seven"), form, tools=TOOLS)) == [("f", {"free": "seven"})]
    unmarked = text.replace(' string="false"', "").replace(' type="number"', "")
    assert [call.flaw for call in read(unmarked, form).tool_calls] == [Flaw.CUT_OFF]


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        ("kimi-k3", "<|open|>response<|sep|>Yes.<|close|>response<|sep|>", "Yes."),
        ("kimi-k3", "<|open|>response<|sep|>Yes.<|close|>respo", "Yes."),
        ("kimi-k3", "<|open|>respo", None),
        ("harmony", "<|channel|>fin", None),
        ("harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assis", None),
        ("harmony", "<|channel|>commentary to=functions.f <|constrain|>js", None),
        ("deepseek-v3.2", "Yes.\n\n<｜DSML｜function_ca", "Yes."),
        ("deepseek-v3.2", "A <｜DSML｜foo> tag", "A <｜DSML｜foo> tag"),
        ("harmony", "<|channel|>final<|message|>1 <", "1 <"),
        ("kimi", "Yes.<|tool_calls_section_begin|>\nNow: <|tool_calls_section_end|>", "Yes."),
        ("mistral", "<think>Hm.</think>Yes.", "Yes."),
        ("hermes", "Yes.<tool_call>", "Yes."),
        ("hermes", "<tool_call>\n", None),
        ("phi4", "<|tool_call|>", None),
    ],
)
def test_what_is_no_text_and_no_call(form: str, text: str, content: str | None) -> None:
    message = read(text, form)
    assert (message.content, message.tool_calls) == (content, ())


@pytest.mark.parametrize("written", [name for name, (form, _, _) in WRITTEN.items() if FORMS[form].reasoning])
def test_reasoning_that_the_prompt_has_ended(written: str) -> None:
    form, write, reasoning = WRITTEN[written]
    end = reasoning.partition("{}")[2]
    for prefix in (end.strip(), reasoning.format("")):
        message = read("Yes." + write(CASES["one"]), form, prefix=prefix)
        assert (message.content, message.reasoning, said(message)) == ("Yes.", None, CASES["one"])


def test_a_call_ends_the_reasoning() -> None:
    call = WRITTEN["qwen-xml"][1](CASES["one"])
    for text, prefix in ((f"<think>Hm.\n{call}", ""), (f"Hm. <tool_call> is\n\n{call}\n</think>\n\nSo.", "<think>\n")):
        message = read(text, "qwen-xml", prefix=prefix)
        assert said(message) == CASES["one"]
        assert (message.reasoning, message.content) == (("Hm. <tool_call> is", "So.") if prefix else ("Hm.", None))


def test_reasoning_may_quote_a_call_of_no_tool() -> None:
    quoted = "It is written <tool_call>\n<function=name_of_it>\n…\n</function>. I need none."
    message = read(f"{quoted}\n</think>\n\nFour.", "qwen-xml", prefix="<think>\n", tools=TOOLS)
    assert message == AnswerMessage(content="Four.", reasoning=quoted)


@pytest.mark.parametrize("written", ["deepseek-v3.2", "kimi-k3"])
def test_json_that_is_marked_stands_as_it_is(written: str) -> None:
    form, write, _ = WRITTEN[written]
    text = write([("f", {"text": {}})]).replace("{}", '"2024-01-01"')
    assert said(read(text, form, tools=TOOLS)) == [("f", {"text": "2024-01-01"})]


@pytest.mark.parametrize(
    "behind", ["\n<parameter=text>\nb\n</parameter>\n</function>\n</tool_call>", "\n</function>\n</tool_call>"]
)
@pytest.mark.parametrize(("key", "value"), [("free", "a"), ("number", "7"), ("object", '{"a": 1}')])
def test_a_parameter_that_is_not_closed(key: str, value: str, behind: str) -> None:
    text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{value}{behind}"
    expected = {key: value if key == "free" else json.loads(value)} | ({"text": "b"} if "text" in behind else {})
    assert said(read(text, "qwen-xml", tools=TOOLS)) == [("f", expected)]


def test_a_parameter_may_spell_tags() -> None:
    value = "</function>\n<parameter=x>\n<tool_call>\n<function=g>\n</think>"
    text = WRITTEN["qwen-xml"][1]([("f", {"text": value})])
    assert said(read(text, "qwen-xml", tools=TOOLS)) == [("f", {"text": value})]


@pytest.mark.parametrize(
    "call",
    [
        "<|channel|>commentary to=python<|message|>print(1)<|call|>",
        "<|start|>assistant to=python<|channel|>analysis code<|message|>print(1)<|call|>",
    ],
)
def test_a_recipient_that_is_no_tool_of_the_request(call: str) -> None:
    message = read(call + "<|start|>assistant<|channel|>final<|message|>Yes.", "harmony", tools=TOOLS)
    assert message == AnswerMessage(content="Yes.", reasoning="print(1)")
    (call_of_a_tool,) = read(call.replace("python", "f").replace("print(1)", "{}"), "harmony", tools=TOOLS).tool_calls
    assert (call_of_a_tool.name, call_of_a_tool.flaw) == ("f", None)


def test_a_form_that_is_not_known() -> None:
    with pytest.raises(InvalidRequest, match="'herms' is not known; it must be one of kimi, "):
        parse_answer("", form="herms")


def test_the_examples_are_true() -> None:
    assert doctest.testmod(parser) == (0, 4)


def test_the_public_names() -> None:
    message = drivetrain.parse_answer("Hi", form="generic")
    assert message == drivetrain.AnswerMessage(content="Hi")
    assert drivetrain.AnswerParser(form="hermes").finish() == []
    assert drivetrain.ToolCall is ToolCall


def test_a_number_that_no_float_can_hold_stays_a_number() -> None:
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "number"}}}}]
    text = "<tool_call>f<arg_key>a</arg_key><arg_value>1e999</arg_value></tool_call>"
    (call,) = parse_answer(text, form="glm", tools=tools).tool_calls
    assert call.arguments == '{"a": 1e999}'
