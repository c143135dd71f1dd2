"""What a chat asks for: how it is rendered, how its answers are read, and what they are held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drivetrain.core.constraint import Constraint
from drivetrain.core.errors import Unsupported
from drivetrain.core.parameters import asks_for_grammar
from drivetrain.core.prompt import Prompt
from drivetrain.core.request import GenerateRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import ToolChoice, ToolMode
from drivetrain.families.base import NOTHING_SET, Family
from drivetrain.families.chats import render_chat
from drivetrain.families.registry import TemplateFamily
from drivetrain.families.template_variables import template_variables
from drivetrain.text.answers.call_ids import CallIds
from drivetrain.text.answers.detect import GENERIC, FormChoice
from drivetrain.text.answers.lookup import AnswerForm
from drivetrain.text.answers.reading import AnswerReading, begun
from drivetrain.text.answers.schemas import ToolSchemas
from drivetrain.text.answers.table import FORMS
from drivetrain.text.grammar.calls import can_write
from drivetrain.text.grammar.rules import AnswerRules, Reasoning


class Chats:
    """One per loaded model.

    `tokenizer` is None for an engine that gives pieces of text. `enforces` is whether the engine honours constraints.
    """

    def __init__(self, family: Family, form: FormChoice, tokenizer: Tokenizer | None, *, enforces: bool) -> None:
        self._family = family
        self._form = form
        self._tokenizer = tokenizer
        self._enforces = enforces

    def render(self, request: GenerateRequest) -> Prompt:
        """Only for a request with messages."""
        assert request.messages is not None
        tools = request.offered_tools
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
            generic=self._is_generic(request),
        )

    def _is_generic(self, request: GenerateRequest) -> bool:
        """Whether calls are asked for in the form `generic`: the model's own is missing or not known."""
        return bool(request.offered_tools) and form_with_tools(self._family, self._form).form == GENERIC

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
        """None: the text is all content."""
        tools = request.offered_tools
        if request.messages is None or prompt is None:
            return None
        if not (tools or self._form.reasons or not isinstance(self._form.form, str)):
            return None
        form = self._form_for(request, prompt)
        reading = AnswerReading(
            form=form,
            tools=tools,
            schemas=ToolSchemas([tool.as_function for tool in tools]),
            tokenizer=self._tokenizer,
            prefix=begun(form, prompt),
            content_last=request.constraint is not None,
            calls_only=request.tool_choice is not None and request.tool_choice.mode is ToolMode.REQUIRED,
        )
        if request.constraint is not None and not tools and self._reasoning(reading) is Reasoning.NONE:
            return None
        return reading

    def _form_for(self, request: GenerateRequest, prompt: Prompt) -> AnswerForm:
        """What is enforced is read by the row of the table that it is written in, whatever template the model has."""
        if self._is_generic(request):
            return GENERIC
        own, row = self._form.form, self._form.written
        if row is None:
            return own
        held = request.constraint is not None or self._holds_calls(request, row)
        if not held and request.max_reasoning_tokens is not None:
            reading = AnswerReading(form=own, tokenizer=self._tokenizer, prefix=begun(own, prompt))
            held = self._reasoning(reading) is not Reasoning.NONE
        return row if held else own

    def _holds_calls(self, request: GenerateRequest, form: AnswerForm) -> bool:
        """Whether calls are enforced, in a form that can be."""
        if asks_for_grammar(request) or request.constraint is not None:
            return True
        return bool(request.offered_tools) and self._enforces and isinstance(form, str) and can_write(form)

    def rules(self, request: GenerateRequest, reading: AnswerReading | None) -> Constraint | AnswerRules | None:
        """What the answers are held to, if to anything. A constraint is on the content, behind the reasoning."""
        if reading is None:
            return request.constraint
        reasoning = self._reasoning(reading)
        tools = reading.tools if self._holds_calls(request, reading.form) else ()
        budget = request.max_reasoning_tokens if reasoning is not Reasoning.NONE else None
        if not tools and request.constraint is None and budget is None:
            return None
        if not isinstance(reading.form, str):
            what = "no grammar is known for the answers of this model's own response_template"
            param = "constraint" if request.constraint is not None else "max_reasoning_tokens"
            raise Unsupported(what, param="tool_choice" if tools else param)
        return AnswerRules(
            form=reading.form,
            tools=tools,
            choice=(request.tool_choice or ToolChoice()) if tools else ToolChoice(),
            parallel=request.parallel_tool_calls is not False,
            reasoning=reasoning,
            max_reasoning_tokens=budget,
            content=request.constraint,
        )

    def _reasoning(self, reading: AnswerReading) -> Reasoning:
        """A prompt that has written reasoning and closed it wants none."""
        reader = reading.reader()
        if reader.is_reasoning:
            return Reasoning.BEGUN
        return Reasoning.POSSIBLE if self._form.reasons and not reader.has_reasoned else Reasoning.NONE


def form_with_tools(family: Family, own: FormChoice) -> FormChoice:
    """The form of the answers to a chat that offers tools, and why. `own` is that of all other answers."""
    writer = "the model's chat template" if isinstance(family, TemplateFamily) else f"the prompt form {family.name}"
    if family.writes_tools and own.form != GENERIC:
        return replace(own, why=f"{writer} writes the tools")
    lacks = "has calls of an unknown form" if family.writes_tools else "cannot write tools"
    return replace(own, form=GENERIC, why=f"{writer} {lacks}, so they are described in plain turns")
