"""Guanaco: QLoRA-tuned LLaMA, in the form of its model card, and the Alpaca form that some of its tunes use.

Source: the cards of timdettmers/guanaco-7b and its merged copies.
"""

from __future__ import annotations

from types import MappingProxyType

from drivetrain.families.alpaca import Alpaca
from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns

# Greedy by top_k; the high penalty keeps a greedy answer from repeating itself.
_SAMPLING = MappingProxyType({"temperature": 1.0, "top_k": 1, "repetition_penalty": 1.7})

# LLaMA's id 0: no text holds it, so a model that emits it is lost.
_STOP_TOKENS = ("</s>", "<unk>")


class Guanaco(LabelledTurns):
    name = "guanaco"
    roles = Roles(system="", user="### Human", assistant="### Assistant")
    separator = "\n"
    answer_end = "\n"  # no EOS: its training text has none between the turns, and answers end where `###` begins
    default_system = (
        "A chat between a curious human and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions."
    )
    stop = ("###",)
    stop_tokens = _STOP_TOKENS
    sampling = _SAMPLING
    max_tokens = 512
    name_patterns = (r"guanaco",)


class GuanacoAlpaca(Alpaca):
    name = "guanaco-alpaca"
    stop = ("###",)
    stop_tokens = _STOP_TOKENS
    sampling = _SAMPLING
    max_tokens = 512
    name_patterns = (r"guanaco.*alpaca", r"alpaca.*guanaco")
