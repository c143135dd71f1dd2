"""How a chat with tools is rendered and read, by what is known of the model's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivetrain.core.messages import parse_messages
from drivetrain.core.request import GenerateRequest
from drivetrain.core.tools import Tool
from drivetrain.families.generic_tools import instructions
from drivetrain.families.registry import TemplateFamily
from drivetrain.text.answers.detect import form_of
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.templates import ChatTemplate
from drivetrain.worker.chats import Chats

CLOCK = Tool("clock")
CALL: dict[str, Any] = {"id": "a", "function": {"name": "clock", "arguments": "{}"}}
CHAT = parse_messages(
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "noon", "tool_call_id": "a"},
    ]
)


class _Tokenizer(ByteTokenizer):
    def __init__(self, marker: str) -> None:
        self.chat_template = (
            "{{ tools | tojson }}\n{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}"
            f'{marker}{{{{ {{"name": c.function.name, "arguments": c.function.arguments}} | tojson }}}}'
            "{% endfor %}{{ m.tool_call_id }}\n{% endfor %}assistant:"
        )


def chats(marker: str) -> Chats:
    tokenizer = _Tokenizer(marker)
    template = ChatTemplate(tokenizer.chat_template or "", special_tokens={}, special_strings=frozenset())
    return Chats(TemplateFamily(template=template), form_of(tokenizer), tokenizer, enforces=True)


@pytest.mark.parametrize(("marker", "form"), [("<tool_call>", "hermes"), ("<my:call>", "generic")])
def test_tools_are_told_in_the_form_that_is_read(marker: str, form: str) -> None:
    """A template whose own form is not known would show the model calls that nobody reads."""
    made, request = chats(marker), GenerateRequest(messages=CHAT, tools=(CLOCK,))
    prompt = made.render(request)
    reading = made.reading(request, prompt)
    assert reading is not None
    assert reading.form == form
    assert prompt.text.count(json.dumps(CLOCK.name)) == 2
    assert (instructions([CLOCK]) in prompt.text) == (form == "generic")
    assert (marker in prompt.text) == (form == "hermes")


def test_calls_of_a_chat_without_tools_are_the_template_s() -> None:
    prompt = chats("<my:call>").render(GenerateRequest(messages=CHAT))
    assert '<my:call>{"name": "clock"' in prompt.text
