"""DeepSeek-VL: DeepSeek's labels with images (deepseek-ai/DeepSeek-VL, utils/conversation.py and processing_vlm.py)."""

from __future__ import annotations

from types import MappingProxyType

from drivetrain.families.base import Roles
from drivetrain.families.deepseek import END_OF_SENTENCE
from drivetrain.families.labelled import LabelledTurns


class DeepSeekVL(LabelledTurns):
    name = "deepseek-vl"
    roles = Roles(system="", user="User", assistant="Assistant")
    separator = "\n\n"
    answer_end = END_OF_SENTENCE
    default_system = (
        "You are a helpful language and vision assistant. "
        "You are able to understand the visual content that the user provides, "
        "and assist the user with a variety of tasks using natural language."
    )
    stop = ("User:",)  # one of its own template's two stop words; the other is the EOS
    stop_tokens = (END_OF_SENTENCE,)
    sampling = MappingProxyType({"repetition_penalty": 1.1})
    max_tokens = 512
    architectures = frozenset({"deepseek_vl", "deepseek_vl_hybrid"})
    name_patterns = (r"deepseek-vl(?!-?2)",)
    image_token = "<image_placeholder>"
