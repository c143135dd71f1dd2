"""Falcon: plain text with labels, `Assistant` for the 7B and 40B instruct models and `Falcon` for 180B chat.

The instruct cards name no form; the one here is FastChat's and that of the public demos. The chat form is the card's.
"""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns


class Falcon(LabelledTurns):
    name = "falcon"
    roles = Roles(system="", user="User", assistant="Assistant")
    separator = "\n\n"
    answer_end = "\n\n"
    # These models often write the user's next turn instead of EOS. At a line's start, the label is no quotation.
    stop = ("\nUser:",)
    stop_tokens = ("<|endoftext|>",)
    add_bos = False  # the vocabulary has none
    architectures = frozenset({"falcon", "RefinedWeb", "RefinedWebModel"})
    name_patterns = (r"falcon-(7|11|40)b", r"falcon-rw")


class FalconChat(LabelledTurns):
    name = "falcon-chat"
    roles = Roles(system="System", user="User", assistant="Falcon")
    separator = "\n"
    answer_end = "\n"
    stop = ("\nUser:",)
    stop_tokens = ("<|endoftext|>",)
    add_bos = False
    architectures_if_named = frozenset({"falcon"})
    name_patterns = (r"falcon-180b",)
