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

WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Those that look like one, and are text in most vocabularies."""

SPELLED = re.compile(r"<[|｜]?[\w▁/ -]{1,40}[|｜]?>|\[/?[A-Z_]{2,20}\]|\[\|\w{1,40}\|\]")
"""What may be one, in the template of a chat."""

SUSPICIOUS = re.compile(r"(?=(<[^<>\n]{1,60}>|\[[^\[\]\n]{1,60}\]|>>\w{1,40}<<))")
"""What may be one, in somebody's words, also within another. More than it is, so each is asked for."""


def frame(plain: Sequence[int], framed: Sequence[int]) -> list[int]:
    """What a server begins a text with, from one text split with and without it.

    Some put something behind a text instead, or as well. Where the text is not found, nothing is taken for its frame.
    """
    starts = range(len(framed) - len(plain) + 1)
    found = (at for at in starts if list(framed[at : at + len(plain)]) == list(plain))
    return list(framed[: next(found, 0)])
