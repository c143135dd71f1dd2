"""The families by name, and which one a loaded model gets.

What decides, in this order:

1. the setting `family`;
2. the chat template that came with the tokenizer;
3. its architecture and its name together, for fine-tunes of another family's models (Zephyr is a `mistral`);
4. its architecture, the config's `model_type`;
5. its name, the last part of a path or Hugging Face id;
6. failing those, the plain text form.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.messages import Message
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.core.tools import Tool
from drivetrain.families.base import CHAT_ROLES, NOTHING_SET, Family, Roles
from drivetrain.families.table import FAMILIES, PLAIN
from drivetrain.text.templates import ChatTemplate

_BY_NAME = MappingProxyType({family.name: family for family in FAMILIES})


@dataclass(frozen=True, slots=True)
class FamilyChoice:
    """The family and, in words, why it was chosen."""

    family: Family
    why: str
    end_of_turn: tuple[str, ...]
    """Tokens that end an answer in this form, whether or not the vocabulary has them."""


def choose(*, explicit: str | None, tokenizer: Tokenizer, architecture: str, name: str) -> FamilyChoice:
    """Raises `InvalidSetting` for an unknown name and `LoadFailed` for a template that cannot be compiled."""
    if explicit is not None:
        family = get(explicit)
        return FamilyChoice(family, "named by the setting", family.stop_tokens)
    if tokenizer.chat_template is not None:
        template = _template(tokenizer, tokenizer.chat_template)
        end = template.end_of_turn()
        return FamilyChoice(TemplateFamily(template=template), "the model's own chat template", (end,) if end else ())
    family, why = guess(architecture=architecture, name=name)
    return FamilyChoice(family, why, family.stop_tokens)


def get(name: str) -> Family:
    """The family of that name. Raises `InvalidSetting`, which suggests close names and lists all."""
    family = _BY_NAME.get(name)
    if family is not None:
        return family
    close = difflib.get_close_matches(name.lower().replace("_", "-"), _BY_NAME)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    raise InvalidSetting(f"no family is named {name!r}{meant} (known: {', '.join(names())})", param="family")


def names() -> tuple[str, ...]:
    return tuple(sorted(_BY_NAME))


def guess(*, architecture: str, name: str) -> tuple[Family, str]:
    """The family that fits best by steps 3 to 6, and why, in words for the logs and `inspect`."""
    matches = [(family, match.group()) for family in FAMILIES if (match := _match(family, name))]
    for family, found in matches:
        if architecture in family.architectures_if_named:
            return family, f'model architecture {architecture}, and the name contains "{found}"'
    for family in FAMILIES:
        if architecture in family.architectures:
            return family, f"model architecture {architecture}"
    for family, found in matches:
        return family, f'the name contains "{found}"'
    return PLAIN, "nothing known fits: plain text form"


def _match(family: Family, name: str) -> re.Match[str] | None:
    # The owner part of an id says little about the form: not all of mistralai's models share one.
    last = name.lower().rstrip("/").rpartition("/")[2]
    return next((match for pattern in family.name_patterns if (match := re.search(pattern, last))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFamily(Family):
    """The model's own chat template, rendered in the sandbox."""

    name: str = "template"
    roles: Roles = CHAT_ROLES
    template: ChatTemplate

    @property
    def variables(self) -> frozenset[str]:
        return self.template.variables

    @property
    def takes_system(self) -> bool:
        return self.template.takes_system

    @property
    def writes_calls(self) -> bool:
        return self.template.writes_calls

    @property
    def writes_tools(self) -> bool:
        return self.template.writes_tools

    def segments(self, messages: Sequence[Message]) -> Iterator[Segment]:
        return iter(self.template.render(messages).segments)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), variables: Mapping[str, Any] = NOTHING_SET
    ) -> Prompt:
        return self.template.render(messages, tools=tools, variables=variables)


def _template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    named = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    return ChatTemplate(
        source,
        special_tokens={name: token for name, token in named.items() if token is not None},
        special_strings=tokenizer.special_strings,
    )
