"""What a chat asks for: how it is rendered, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drivetrain.core.prompt import Prompt
from drivetrain.core.request import GenerateRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import Tool, ToolMode
from drivetrain.families.base import NOTHING_SET, Family
from drivetrain.families.chats import render_chat, writes_itself
from drivetrain.families.template_variables import template_variables
from drivetrain.text.answers.call_ids import CallIds
from drivetrain.text.answers.detect import GENERIC, FormChoice
from drivetrain.text.answers.reading import AnswerReading, begun
from drivetrain.text.answers.table import FORMS


class Chats:
    """One per loaded model. `tokenizer` is None for an engine that gives pieces of text."""

    def __init__(self, family: Family, form: FormChoice, tokenizer: Tokenizer | None) -> None:
        self._family = family
        self._form = form
        self._tokenizer = tokenizer

    def render(self, request: GenerateRequest) -> Prompt:
        """Only for a request with messages."""
        assert request.messages is not None
        tools = offered(request)
        if not tools and not any(message.tool_calls or message.role == "tool" for message in request.messages):
            rendered = self._family.render(request.messages, variables=self._variables(request))
            return replace(rendered, messages=request.messages)
        row = FORMS.get(self._form.written or "")
        return render_chat(
            self._family,
            request.messages,
            tools=tools,
            variables=self._variables(request),
            call_ids=row.call_ids if row is not None else CallIds.ANY,
        )

    def _variables(self, request: GenerateRequest) -> Mapping[str, object]:
        if not request.chat_template_kwargs and request.reasoning_effort is None:
            return NOTHING_SET
        return template_variables(
            request.chat_template_kwargs,
            request.reasoning_effort,
            known=self._family.variables,
            reasons=self._form.reasons,
        )

    def reading(self, request: GenerateRequest, prompt: Prompt | None) -> AnswerReading | None:
        """None: the text is all content. It is under a constraint, which is on the whole text."""
        if request.messages is None or prompt is None or request.constraint is not None:
            return None
        tools, form = offered(request), self._form.form
        if not (tools or self._form.reasons or not isinstance(form, str)):
            return None
        if tools and not writes_itself(self._family, tools):
            form = GENERIC
        return AnswerReading(form=form, tools=tools, tokenizer=self._tokenizer, prefix=begun(form, prompt))


def offered(request: GenerateRequest) -> tuple[Tool, ...]:
    """The tools that the model is told of."""
    if request.tools and request.tool_choice is not None and request.tool_choice.mode is ToolMode.NONE:
        return ()
    return request.tools or ()
