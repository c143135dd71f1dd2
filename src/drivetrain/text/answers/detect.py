"""Which form a model's answers have."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.answers.forms import Form
from drivetrain.text.answers.lookup import AnswerForm, look_up
from drivetrain.text.answers.parser import parse_answer
from drivetrain.text.answers.response_template import ResponseTemplate
from drivetrain.text.answers.table import FORMS

OWN = "response_template"
GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form and, in words, why it was chosen.

    `reasons` is whether the model's templates know reasoning. `written` is the row of the table whose calls and
    reasoning the model writes; None: no row is known to be like its own template.
    """

    form: AnswerForm
    why: str
    reasons: bool = False
    written: str | None = None

    @property
    def name(self) -> str:
        return self.form if isinstance(self.form, str) else OWN


def form_of(tokenizer: Tokenizer) -> FormChoice:
    """What decides, in this order: the `response_template` that came with the weights; the markers that the chat
    template writes; failing those, the form that any model can be asked for.
    """
    source, fault = tokenizer.chat_template or "", ""
    row = _row_for(source)
    if tokenizer.response_template is not None:
        try:
            look_up(tokenizer.response_template, None, "")
        except InvalidRequest as exc:
            fault = f", since {exc.message}"
        else:
            reasons = bool(ResponseTemplate(tokenizer.response_template).form.reasoning_regions)
            written = row.name if row is not None and _reads(tokenizer.response_template, row, reasons) else None
            return FormChoice(tokenizer.response_template, "the model's own response_template", reasons, written)
    if row is not None:
        why = f"the model's chat template has {' and '.join(row.signs)}{fault}"
        return FormChoice(row.name, why, _knows(source, row), row.name)
    why = "the model's chat template shows no known form" if source else "there is no chat template"
    return FormChoice(GENERIC, f"{why}{fault}", _knows(source, FORMS[GENERIC]), GENERIC)


def _row_for(source: str) -> Form | None:
    return next((form for form in FORMS.values() if form.signs and all(sign in source for sign in form.signs)), None)


def _reads(template: AnswerForm, row: Form, reasons: bool) -> bool:
    """Whether the template reads what is written as in the row: a thought, if the model has any, and content."""
    opens, closes = row.reasoning if reasons and row.reasoning is not None else ("", "")
    thought = f"{opens}a{closes}" if opens else ""
    message = parse_answer(f"{thought}{row.writing.content if row.writing is not None else ''}b", form=template)
    return (message.reasoning or "", message.content) == ("a" if reasons else "", "b")


def _knows(source: str, form: Form) -> bool:
    """Whether a template has a marker of reasoning. A form whose reasoning is opened by a pattern always reasons."""
    return any(
        bool(region.open_pattern) or any(marker.strip() in source for marker in (*region.opens, *region.closes))
        for region in form.reasoning_regions
    )
