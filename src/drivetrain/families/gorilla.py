"""Gorilla: LLaMA tuned to write API calls.

The form is `gorilla_v0` of its serving CLI (ShishirPatil/gorilla, inference/serve/conv_template.py): Vicuna's text with
line breaks. Its batch script gorilla_eval.py sends `###USER: …###ASSISTANT:` instead. Gorilla OpenFunctions and the
Falcon and MPT tunes have forms of their own and are not meant here.
"""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns
from drivetrain.families.vicuna import CURIOUS_USER


class Gorilla(LabelledTurns):
    name = "gorilla"
    roles = Roles(system="", user="USER", assistant="ASSISTANT")
    separator = "\n"
    answer_end = "</s>"
    default_system = CURIOUS_USER
    stop_tokens = ("</s>",)
    max_tokens = 1024
    name_patterns = (r"gorilla(?!-(openfunctions|falcon|mpt))",)
