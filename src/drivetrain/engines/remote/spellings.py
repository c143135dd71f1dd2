"""How special tokens are spelled: what to ask an upstream for that does not list its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<｜end▁of▁sentence｜>",
    "[|endofturn|]",
)  # fmt: skip
"""Those that end an answer in one vocabulary or another."""

SPELLED = re.compile(r"<[|｜]?[\w▁/ -]{1,40}[|｜]?>|\[/?[A-Z_]{2,20}\]|\[\|\w{1,40}\|\]")
"""What may be one, in the template of a chat."""

SUSPICIOUS = re.compile(r"(?=(<[^<>\n]{1,60}>|\[[^\[\]\n]{1,60}\]|>>\w{1,40}<<))")
"""What may be one, in somebody's words, also within another. More than it is, so each is asked for."""


def frame(plain: Sequence[int], framed: Sequence[int]) -> list[int]:
    """What a server begins a text with, from one text split with and without it."""
    if plain and list(framed[-len(plain) :]) == list(plain):
        return list(framed[: len(framed) - len(plain)])
    return list(framed[:1])
