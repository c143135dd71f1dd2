"""DeepSeek-VL2: the same script with role tokens as labels (deepseek-ai/DeepSeek-VL2, models/conversation.py)."""

from __future__ import annotations

from types import MappingProxyType

from drivetrain.families.base import Roles
from drivetrain.families.deepseek import END_OF_SENTENCE
from drivetrain.families.labelled import LabelledTurns


class DeepSeekVL2(LabelledTurns):
    name = "deepseek-vl2"
    roles = Roles(system="", user="<|User|>", assistant="<|Assistant|>")
    separator = "\n\n"
    answer_end = END_OF_SENTENCE
    stop_tokens = (END_OF_SENTENCE, "<|User|>")
    sampling = MappingProxyType({"repetition_penalty": 1.1})
    max_tokens = 256
    architectures = frozenset({"deepseek_vl_v2"})
    name_patterns = (r"deepseek-vl-?2",)
    image_token = "<image>"
    image_end = "\n"  # as in every example of the card
