"""ChatML: the form that OpenAI published, used by SmolLM2, Hermes, Dolphin and many other fine-tunes."""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.marked import MarkedTurns


class ChatML(MarkedTurns):
    name = "chatml"
    roles = Roles(system="system", user="user", assistant="assistant")
    before_role = "<|im_start|>"
    after_role = "\n"
    separator = "<|im_end|>\n"
    stop_tokens = ("<|im_end|>",)
    add_bos = False  # the form has none; SmolLM2 even declares <|im_start|> as its BOS
    architectures_if_named = frozenset({"mistral", "mixtral"})
    name_patterns = (r"smollm(?!3)", r"hermes-[23]\b", r"dolphin.*mi[sx]tral", r"chatml")
