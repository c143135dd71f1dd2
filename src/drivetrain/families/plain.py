"""The form for a model that nothing is known about, base models included: a dialogue as it stands on a web page.

    {system text}
    User: {question}
    Assistant: {answer}
    User: {question}
    Assistant:

It uses no special token, so it fits every vocabulary. A base model goes on with the user's next line; that is the stop.
"""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns


class Plain(LabelledTurns):
    name = "plain"
    roles = Roles(system="", user="User", assistant="Assistant")
    separator = "\n"
    answer_end = "\n"
    stop = ("\nUser:",)
