"""A whole chat as a prompt, with tools, calls and results, whether or not the form has its own way to say them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivetrain.core.messages import Message
from drivetrain.core.prompt import Prompt
from drivetrain.core.tools import Tool
from drivetrain.families.base import NOTHING_SET, Family
from drivetrain.families.generic_tools import needs_writing, written_out
from drivetrain.text.answers.call_ids import CallIds, with_own_ids


def writes_itself(family: Family, tools: Sequence[Tool]) -> bool:
    """Whether the form has its own way to say these tools, calls and results."""
    return family.writes_tools if tools else family.writes_calls


def render_chat(
    family: Family,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    variables: Mapping[str, Any] = NOTHING_SET,
    call_ids: CallIds = CallIds.ANY,
    generic: bool = False,
) -> Prompt:
    """Its `messages` are those that were rendered. `call_ids` are those of the form of its answers.

    With `generic`, tools, calls and results are written out for answers of that form, even if the form of the prompt
    has its own way to say them.

    Raises `InvalidRequest` for what the form cannot express.
    """
    said, told = tuple(messages), tuple(tools)
    if needs_writing(messages, tools):
        if writes_itself(family, tools) and not generic:
            said = with_own_ids(messages, call_ids)
        else:
            takes_system, default = family.takes_system, family.default_system
            said, told = written_out(messages, tools, takes_system=takes_system, default_system=default), ()
    return replace(family.render(said, tools=told, variables=variables), messages=said)
