"""How special tokens are spelled, for upstreams that do not list theirs."""

from __future__ import annotations

import re

ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<｜end▁of▁sentence｜>",
    "[|endofturn|]",
)  # fmt: skip
"""Tokens that end an answer in one vocabulary or another."""

WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens that look special, and are plain text in most vocabularies."""

SPELLED = re.compile(r"<[|｜]?[\w▁/ -]{1,40}[|｜]?>|\[/?[A-Z_]{2,20}\]|\[\|\w{1,40}\|\]")
"""What may be a special token in a chat template."""

SUSPICIOUS = re.compile(r"(?=(<[^<>\n]{1,60}>|\[[^\[\]\n]{1,60}\]|>>\w{1,40}<<))")
"""What may be a special token in a caller's text, also inside another match. Matches too much, so each is checked."""
