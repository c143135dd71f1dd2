"""Alpaca: instruction and response under headings (Stanford Alpaca's prompt without an input).

The original has one turn. More turns follow each other with a blank line, each response closed by the EOS that it
had in training.
"""

from __future__ import annotations

from typing import ClassVar

from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns


class Alpaca(LabelledTurns):
    name = "alpaca"
    roles = Roles(system="", user="### Instruction", assistant="### Response")
    label_end = ":\n"
    separator = "\n\n"
    answer_end = "</s>\n\n"
    default_system = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request."
    )
    # Tunes on other vocabularies often miss their EOS and go on to write the next instruction themselves.
    stop: ClassVar[tuple[str, ...]] = ("### Instruction:",)
    stop_tokens: ClassVar[tuple[str, ...]] = ("</s>",)
    name_patterns: ClassVar[tuple[str, ...]] = (r"alpaca",)
