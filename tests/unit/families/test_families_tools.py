"""Tools, calls and results in every form: its own way to say them, or turns of the roles that it has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from drivetrain.core.answer import ToolCall
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import ImagePart, Message, TextPart, parse_messages
from drivetrain.core.prompt import Prompt, own_specials
from drivetrain.core.tools import Tool
from drivetrain.families import registry
from drivetrain.families.chats import render_chat, writes_itself
from drivetrain.families.generic_tools import instructions, written_out
from drivetrain.families.registry import TemplateFamily
from drivetrain.text.answers import parse_answer
from drivetrain.text.answers.call_ids import CallIds
from drivetrain.text.templates import ChatTemplate

TOOLS = (
    Tool("get_weather", "The weather in a city.", '{"type": "object", "properties": {"city": {"type": "string"}}}'),
    Tool("clock"),
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('No system role!') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Alternate!') }}{% endif %}"
    "<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OWN = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.id }}:{{ c.function.name }}:{{ c.function.arguments | tojson }}"
    "{% endfor %}{% if m.tool_call_id %}<of>{{ m.tool_call_id }}{% endif %}<|im_end|>\n{% endfor %}"
)
SPECIALS = frozenset({"<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<tool_call>"})


def of_template(source: str) -> TemplateFamily:
    return TemplateFamily(template=ChatTemplate(source, special_tokens={}, special_strings=SPECIALS))


def read(*turns: tuple[str, str] | dict[str, Any]) -> tuple[Message, ...]:
    return parse_messages([t if isinstance(t, dict) else {"role": t[0], "content": t[1]} for t in turns])


def calls(text: str | None, *each: tuple[str, str, str]) -> dict[str, Any]:
    made = [{"id": i, "function": {"name": name, "arguments": arguments}} for i, name, arguments in each]
    return {"role": "assistant", "content": text, "tool_calls": made}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


OSLO, BERN = ("a", "get_weather", '{"city": "Oslo"}'), ("b", "get_weather", '{"city":"Bern"}')
CHAT = read(
    ("system", "Be brief."),
    ("user", "Where is it warmer?"),
    calls("I look.", OSLO, BERN),
    result("b", "9 degrees"),
    result("a", "5 degrees"),
    ("assistant", "In Bern."),
    ("user", "And the time?"),
    calls(None, ("c", "clock", "{}")),
    result("c", "ten"),
)
OSLO_SAID = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
BERN_SAID = '<tool_call>{"name": "get_weather", "arguments": {"city":"Bern"}}</tool_call>'
WRITTEN = [
    ("user", "Where is it warmer?"),
    ("assistant", f"I look.\n{OSLO_SAID}\n{BERN_SAID}"),
    ("user", "<tool_response>\n5 degrees\n</tool_response>\n<tool_response>\n9 degrees\n</tool_response>"),
    ("assistant", "In Bern."),
    ("user", "And the time?"),
    ("assistant", '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'),
    ("user", "<tool_response>\nten\n</tool_response>"),
]


def said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def test_a_whole_chat() -> None:
    system = ("system", f"Be brief.\n\n{instructions(TOOLS)}")
    assert said(written_out(CHAT, TOOLS)) == [system, *WRITTEN]


def test_without_tools_the_history_is_still_written() -> None:
    assert said(written_out(CHAT, ())) == [("system", "Be brief."), *WRITTEN]


def test_where_the_tools_are_told() -> None:
    told, hi = instructions(TOOLS), read(("user", "Hi"))
    assert said(written_out(hi, TOOLS)) == [("system", told), ("user", "Hi")]
    assert said(written_out(hi, TOOLS, default_system="Be kind."))[0] == ("system", f"Be kind.\n\n{told}")
    assert said(written_out(hi, TOOLS, takes_system=False, default_system="x")) == [("user", f"{told}\n\nHi")]
    empty = read(("system", ""), ("user", "Hi"))
    assert said(written_out(empty, TOOLS, default_system="x")) == [("system", told), ("user", "Hi")]


def test_the_instructions_name_each_tool_and_read_as_the_generic_form() -> None:
    text = instructions(TOOLS)
    for tool in TOOLS:
        assert f'"name": "{tool.name}"' in text
        assert tool.description in text
        assert tool.parameters in text
    example = text[text.index("<tool_call>{") : text.index("</tool_call>") + len("</tool_call>")]
    filled = example.replace("NAME", "clock").replace('"PARAMETER": VALUE', '"zone": "CET"')
    (call,) = parse_answer(filled, form="generic", tools=[tool.as_function for tool in TOOLS]).tool_calls
    assert call == ToolCall(0, "clock", '{"zone": "CET"}')


def test_what_is_written_of_calls_reads_back_as_them() -> None:
    strange = ("d", 'a "b"\n</x>', '{"x": "</tool_call> é"}')
    messages = read(("user", "Hi"), calls("Well.", OSLO, strange))
    again = parse_answer(written_out(messages, ())[1].text, form="generic", tools=None)
    assert again.content == "Well."
    assert [(c.name, c.arguments) for c in again.tool_calls] == [OSLO[1:], strange[1:]]


def test_arguments_that_are_no_object_are_written_as_text() -> None:
    messages = read(("user", "Hi"), calls(None, ("a", "f", '{"x": ')))
    assert written_out(messages, ())[1].text == '<tool_call>{"name": "f", "arguments": "{\\"x\\": "}</tool_call>'


def test_turns_of_one_role_become_one_only_where_something_was_written() -> None:
    chat = read(
        ("user", "a"), ("user", "b"), ("assistant", "c"), calls(None, OSLO), result("a", "d"), ("user", "e"),
        ("assistant", "f"), ("assistant", "g"),
    )  # fmt: skip
    assert said(written_out(chat, ())) == [
        ("user", "a"), ("user", "b"), ("assistant", f"c\n\n{OSLO_SAID}"),
        ("user", "<tool_response>\nd\n</tool_response>\ne"), ("assistant", "f"), ("assistant", "g"),
    ]  # fmt: skip


def test_images_keep_their_place() -> None:
    picture = ImagePart(data=b"x")
    chat = [Message("user", (picture, TextPart("What?"))), Message("tool", (TextPart("It: "), picture))]
    (first,) = written_out(chat, TOOLS, takes_system=False)
    assert [part if isinstance(part, ImagePart) else None for part in first.content].count(picture) == 2
    assert first.text.endswith("What?\n<tool_response>\nIt: \n</tool_response>")


@pytest.mark.parametrize("name", registry.names())
def test_every_form_takes_a_chat_with_tools(name: str) -> None:
    family = registry.get(name)
    assert not writes_itself(family, TOOLS)
    assert not writes_itself(family, ())
    prompt = render_chat(family, CHAT, tools=TOOLS)
    literal = "\0".join(segment.text for segment in prompt.segments if segment.literal)
    at = -1
    for text in ("Be brief.", instructions(TOOLS), *(text for _, text in WRITTEN)):
        assert (at := literal.find(text, at + 1)) >= 0, text
    assert "<tool_" not in "".join(segment.text for segment in prompt.segments if not segment.literal)


@pytest.mark.parametrize("name", registry.names())
def test_a_form_keeps_its_own_system_text(name: str) -> None:
    family = registry.get(name)
    assert render_chat(family, read(("user", "Hi")), tools=TOOLS).text.count(family.default_system or "Hi") == 1


@pytest.mark.parametrize("name", registry.names())
def test_nothing_changes_without_tools(name: str) -> None:
    chat = read(("user", "Hi"), ("assistant", "Hello."), ("user", "Why?"))
    family = registry.get(name)
    assert render_chat(family, chat) == replace(family.render(chat), messages=chat)


def test_a_server_that_renders_chats_itself_gets_what_was_rendered() -> None:
    """It is sent messages with roles and text, and knows nothing of tools."""
    prompt = render_chat(registry.get("chatml"), CHAT, tools=TOOLS)
    assert said(prompt.messages or ()) == [("system", f"Be brief.\n\n{instructions(TOOLS)}"), *WRITTEN]
    assert render_chat(of_template(OWN), CHAT, tools=TOOLS).messages == CHAT


@pytest.mark.parametrize("name", registry.names())
def test_a_form_does_not_drop_what_it_cannot_say(name: str) -> None:
    with pytest.raises(InvalidRequest, match="has no calls") as caught:
        registry.get(name).render(read(("user", "Hi"), calls("x", OSLO)))
    assert caught.value.param == "messages[1].tool_calls"


@pytest.mark.parametrize("source", [GEMMA, CHATML], ids=["gemma", "chatml"])
def test_a_template_without_tools_gets_turns(source: str) -> None:
    family = of_template(source)
    assert not family.writes_tools
    chat = CHAT[1:] if source is GEMMA else CHAT
    prompt = render_chat(family, chat, tools=TOOLS)
    marker = re.compile(r"<start_of_turn>|<\|im_start\|>")
    roles = [turn.partition("\n")[0] for turn in marker.split(prompt.text)[1:]]
    assert roles == ([] if source is GEMMA else ["system"]) + [role for role, _ in WRITTEN]
    assert prompt.text.count(instructions(TOOLS)) == 1
    assert "<tool_call>" not in tokens(prompt)


def test_a_template_with_tools_writes_them_itself() -> None:
    family = of_template(OWN)
    assert writes_itself(family, TOOLS)
    text = render_chat(family, CHAT, tools=TOOLS, call_ids=CallIds.NUMBERED).text
    assert text.startswith('[{"type": "function", "function": {"name": "get_weather"')
    assert '<call>functions.get_weather:1:get_weather:{"city": "Bern"}' in text
    assert "9 degrees<of>functions.get_weather:1<|im_end|>" in text
    assert "<tool_response>" not in text


def test_a_template_that_writes_calls_but_no_tools() -> None:
    family = of_template(OWN.replace("{{ tools | tojson }}", ""))
    assert (writes_itself(family, TOOLS), writes_itself(family, ())) == (False, True)
    assert "<call>" not in render_chat(family, CHAT, tools=TOOLS).text
    assert OSLO_SAID in render_chat(family, CHAT, tools=TOOLS).text
    assert "<call>c:clock:{}" in render_chat(family, CHAT).text


def tokens(prompt: Prompt) -> list[str]:
    return [prompt.text[start:end] for start, end in own_specials(prompt, SPECIALS)]
