"""Which prompt form a loaded model gets: an explicit name, its own chat template, its architecture, its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.families import registry
from drivetrain.families.base import Family, Roles
from drivetrain.text.templates import ChatTemplate


@dataclass(frozen=True, slots=True)
class Chosen:
    """The family and, in words, why it and no other."""

    family: Family
    why: str
    end_of_turn: tuple[str, ...]
    """Tokens that end an answer in this form, whether or not the vocabulary has them."""


class TemplateFamily(Family):
    """The model's own chat template, rendered in the sandbox."""

    name: ClassVar[str] = "template"
    roles: ClassVar[Roles] = Roles("system", "user", "assistant")

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        return iter(self.template.render(messages).segments)

    def render(self, messages: Sequence[Message]) -> Prompt:
        return self.template.render(messages)


def choose(*, explicit: str | None, tokenizer: Tokenizer, architecture: str, name: str) -> Chosen:
    """Raises `InvalidSetting` for an unknown name and `LoadFailed` for a template that cannot be read."""
    if explicit is not None:
        family = registry.get(explicit)
        return Chosen(family, "named by the setting", family.stop_tokens)
    if tokenizer.chat_template is not None:
        template = TemplateFamily(_template(tokenizer, tokenizer.chat_template))
        end = template.template.end_of_turn()
        return Chosen(template, "the model's own chat template", (end,) if end else ())
    family, why = registry.guess(architecture=architecture, name=name)
    return Chosen(family, why, family.stop_tokens)


def _template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    named = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    return ChatTemplate(
        source,
        special_tokens={name: token for name, token in named.items() if token is not None},
        special_strings=tokenizer.special_strings,
    )
