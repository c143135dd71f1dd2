"""Zephyr, and TinyLlama chat: role tags on lines of their own, EOS after every turn (HuggingFaceH4's model card)."""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.marked import MarkedTurns


class Zephyr(MarkedTurns):
    name = "zephyr"
    roles = Roles(system="system", user="user", assistant="assistant")
    before_role = "<|"
    after_role = "|>\n"
    separator = "</s>\n"
    stop_tokens = ("</s>",)
    architectures_if_named = frozenset({"mistral", "mixtral"})
    # StableLM Zephyr ends its turns with another EOS, the Gemma one speaks ChatML.
    name_patterns = (r"(?<!stablelm-)(?<!stablelm-2-)zephyr(?!-7b-gemma)", r"tinyllama.*chat")
