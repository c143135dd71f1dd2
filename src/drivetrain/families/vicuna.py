"""Vicuna v1.1 and later: one line of USER and ASSISTANT (the lmsys/vicuna-*-v1.5 cards, FastChat's vicuna_v1.1)."""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns

CURIOUS_USER = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


class Vicuna(LabelledTurns):
    """No stop strings: it was trained to end with EOS, and `USER:` would cut an answer that quotes a chat."""

    name = "vicuna"
    roles = Roles(system="", user="USER", assistant="ASSISTANT")
    separator = " "
    answer_end = "</s>"
    default_system = CURIOUS_USER
    stop_tokens = ("</s>",)
    name_patterns = (r"vicuna",)
