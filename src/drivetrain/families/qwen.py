"""Qwen 1 to 3, text and vision: ChatML with a system text of its own.

The default system text is that of Qwen2 and all the VL models. Qwen2.5 text models name their maker in it, and Qwen3
has none: their own chat templates say so, and come first.
"""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.marked import MarkedTurns


class Qwen(MarkedTurns):
    name = "qwen"
    roles = Roles(system="system", user="user", assistant="assistant")
    before_role = "<|im_start|>"
    after_role = "\n"
    separator = "<|im_end|>\n"
    default_system = "You are a helpful assistant."
    stop_tokens = ("<|im_end|>", "<|endoftext|>")
    add_bos = False  # the vocabulary has none
    architectures = frozenset(
        {
            "qwen",
            "qwen2",
            "qwen2_moe",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "qwen3_vl_moe",
        }
    )
    name_patterns = (r"qwen", r"qwq")
    image_token = "<|vision_start|><|image_pad|><|vision_end|>"
