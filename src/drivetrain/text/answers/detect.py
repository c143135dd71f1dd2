"""Which form a model's answers have."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.answers.lookup import AnswerForm, look_up
from drivetrain.text.answers.table import FORMS

OWN = "response_template"
GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form and, in words, why it was chosen."""

    form: AnswerForm
    why: str

    @property
    def name(self) -> str:
        return self.form if isinstance(self.form, str) else OWN


def form_of(tokenizer: Tokenizer) -> FormChoice:
    """What decides, in this order: the `response_template` that came with the weights; the markers that the chat
    template writes; failing those, the form that any model can be asked for.
    """
    fault = ""
    if tokenizer.response_template is not None:
        try:
            look_up(tokenizer.response_template, None, "")
        except InvalidRequest as exc:
            fault = f", since {exc.message}"
        else:
            return FormChoice(tokenizer.response_template, "the model's own response_template")
    source = tokenizer.chat_template or ""
    for form in FORMS.values():
        if form.signs and all(sign in source for sign in form.signs):
            signs = " and ".join(form.signs)
            return FormChoice(form.name, f"the model's chat template has {signs}{fault}")
    why = "the model's chat template shows no known form" if source else "there is no chat template"
    return FormChoice(GENERIC, f"{why}{fault}")
