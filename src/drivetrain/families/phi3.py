"""Phi-3 and Phi-3.5: `<|user|>`, `<|assistant|>` and `<|end|>` on lines of their own (Microsoft's model cards)."""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.marked import MarkedTurns


class Phi3(MarkedTurns):
    name = "phi3"
    roles = Roles(system="system", user="user", assistant="assistant")
    before_role = "<|"
    after_role = "|>\n"
    separator = "<|end|>\n"
    stop_tokens = ("<|end|>", "<|endoftext|>")
    add_bos = False  # the card's tokenizer adds none
    architectures = frozenset({"phi3", "phimoe"})
    name_patterns = (r"phi-?3",)
