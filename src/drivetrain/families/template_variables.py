"""What a request says to its chat template: `chat_template_kwargs` and `reasoning_effort`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from drivetrain.core.errors import InvalidRequest, Unsupported
from drivetrain.core.kinds import MAX_SHOWN_CHARS, shown

EFFORT = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")
"""What templates call a switch for reasoning."""
EFFORT_VARIABLES = (EFFORT, *_SWITCHES)
REASON = "on"
"""An effort that says whether to reason, and leaves it to the model how much."""
_GIVEN = "chat_template_kwargs"


def template_variables(
    given: Mapping[str, Any] | None, effort: str | None, *, known: frozenset[str], reasons: bool
) -> Mapping[str, Any]:
    """The variables to render with. `known` are those that the prompt form reads.

    An effort goes to the variable of that name; if there is none, to a switch for reasoning: `none` turns it off, all
    others on. `on` goes to a switch alone. Failing that, it means nothing for a model that does not reason. Raises
    `Unsupported` for what the form does not read, and `InvalidRequest` for an effort that contradicts a variable.
    """
    variables = dict(given or {})
    for name in variables:
        if name not in known:
            raise _unknown(name, known)
    if effort is None:
        return variables
    readable = _SWITCHES if effort == REASON else EFFORT_VARIABLES
    reads = next((name for name in readable if name in known), None)
    if reads is None:
        if reasons and effort != REASON:
            what = "this model's chat template has no variable for it"
            raise Unsupported(f"{EFFORT} is not supported: {what}", param=EFFORT)
        return variables
    value = effort if reads == EFFORT else effort != "none"
    if variables.setdefault(reads, value) != value:
        what = f"{EFFORT} is {shown(effort)}, but {_GIVEN}.{reads} is {shown(variables[reads])}; send one of them"
        raise InvalidRequest(what, param=EFFORT)
    return variables


def _unknown(name: str, known: frozenset[str]) -> Unsupported:
    param = f"{_GIVEN}.{name[:MAX_SHOWN_CHARS]}"
    if not known:
        return Unsupported(f"{_GIVEN} is not supported: this model's prompt form has no variables", param=param)
    close = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], sorted(known))
    hint = f"did you mean {' or '.join(close)}?" if close else f"it reads {', '.join(sorted(known)[:20])}"
    return Unsupported(f"{_GIVEN} has {shown(name)}, which the chat template does not read; {hint}", param=param)
