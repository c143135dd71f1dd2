"""Which form a model's answers have, by what came with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from answers_templates import TEMPLATES

from drivetrain.text.answers import FORMS, parse_answer
from drivetrain.text.answers.detect import GENERIC, OWN, form_of
from drivetrain.text.byte_tokenizer import ByteTokenizer

CALLS = {
    "kimi": "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.arguments }}<|tool_call_end|>",
    "kimi-k3": '<|open|>call tool="{{ call.name }}"<|sep|>{{ arguments }}<|close|>call<|sep|>',
    "deepseek-v3.2": "{% set d = '｜DSML｜' %}{% if message.tool_calls %}{{ '<' + d + 'function_calls>' }}{% endif %}",
    "deepseek-v4.1": "{% if m.tool_calls %}<｜DSML｜ calls><｜DSML｜ invoke name={{ n }}></｜DSML｜ calls>{% endif %}",
    "deepseek-v4": "{% if m.tool_calls %}<｜DSML｜tool_calls><｜DSML｜invoke name={{ n }}>{% endif %}",
    "deepseek-r1": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name }}\n```json\n{{ call.arguments }}\n```",
    "deepseek-v3.1": "<｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>{{ call.arguments }}<｜tool▁call▁end｜>",
    "glm": "<tool_call>{{ call.name }}<arg_key>{{ key }}</arg_key><arg_value>{{ value }}</arg_value></tool_call>",
    "gemma4": "<|tool_call>call:{{ call.name }}{{ arguments }}<tool_call|>",
    "harmony": "<|channel|>commentary to=functions.{{ call.name }}<|message|>{{ call.arguments }}<|call|>",
    "mistral": "[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments }}",
    "mistral-list": '[TOOL_CALLS][{"name": "{{ call.name }}", "arguments": {{ call.arguments }}}]',
    "granite-4": '<|start_of_role|>assistant<tool_call>{"name": {{ call.name }}, "arguments": {{ a }}}</tool_call>',
    "granite": '<|start_of_role|>assistant<|tool_call|>[{"name": {{ call.name }}, "arguments": {{ a }}}]',
    "phi4": "<|system|>{{ system }}<|tool|>{{ tools | tojson }}<|/tool|>",
    "qwen-xml": "<tool_call><function={{ call.name }}><parameter={{ k }}>{{ v }}</parameter></function></tool_call>",
    "llama-pythonic": "<|python_start|>{{ calls }}<|python_end|>",
    "hermes": '<tool_call>{"name": "{{ call.name }}", "arguments": {{ call.arguments }}}</tool_call>',
    "llama-json": '<|start_header_id|>assistant<|end_header_id|>{"name": "{{ n }}", "parameters": {{ a | tojson }}}',
}
"""How the chat templates of these models write a call."""


class _Tokenizer(ByteTokenizer):
    def __init__(self, chat_template: str | None, response_template: Mapping[str, Any] | None = None) -> None:
        self.chat_template = chat_template
        self.response_template = response_template


def test_every_form_with_signs_is_tested() -> None:
    assert list(CALLS) == [name for name, form in FORMS.items() if form.signs]
    assert list(FORMS)[-1] == GENERIC


@pytest.mark.parametrize("form", CALLS)
def test_the_chat_template_shows_the_form(form: str) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}" + CALLS[form]
    found = form_of(_Tokenizer(template))
    assert (found.form, found.name) == (form, form)
    assert all(sign in found.why for sign in FORMS[form].signs)


def test_the_model_s_own_response_template_comes_first() -> None:
    name, template = next(iter(TEMPLATES.items()))
    found = form_of(_Tokenizer(CALLS["hermes"], template))
    assert (found.form, found.name, found.why) == (template, OWN, "the model's own response_template"), name
    assert parse_answer("Hello", form=found.form) is not None


def test_a_response_template_that_cannot_be_used_is_told() -> None:
    found = form_of(_Tokenizer(CALLS["hermes"], {"version": 99}))
    assert found.form == "hermes"
    assert "since the response_template cannot be used: the version 99 is not known" in found.why


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "there is no chat template"),
        ("{{ messages }}", "the model's chat template shows no known form"),
        ("<seed:tool_call><function={{ name }}>", "the model's chat template shows no known form"),
    ],
)
def test_other_models_are_asked_for_the_generic_form(template: str | None, why: str) -> None:
    found = form_of(_Tokenizer(template))
    assert (found.form, found.why) == (GENERIC, why)
