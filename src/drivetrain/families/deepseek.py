"""DeepSeek: labels in plain text (LLM, MoE, V2, Coder-V2), and role tokens without labels (V2.5, V3, R1)."""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.labelled import LabelledTurns

# The bars are U+FF5C and the blanks U+2581: that is how the vocabulary spells its special tokens.
END_OF_SENTENCE = "<｜end▁of▁sentence｜>"


class DeepSeek(LabelledTurns):
    name = "deepseek"
    roles = Roles(system="", user="User", assistant="Assistant")
    separator = "\n\n"
    answer_end = END_OF_SENTENCE
    stop_tokens = (END_OF_SENTENCE,)
    architectures = frozenset({"deepseek", "deepseek_v2"})
    name_patterns = (r"deepseek-(llm|moe|v2|coder-v2)",)


class DeepSeekV3(LabelledTurns):
    name = "deepseek-v3"
    roles = Roles(system="", user="<｜User｜>", assistant="<｜Assistant｜>")
    label_end = ""
    separator = ""
    answer_end = END_OF_SENTENCE
    stop_tokens = (END_OF_SENTENCE,)
    architectures = frozenset({"deepseek_v3"})
    architectures_if_named = frozenset({"deepseek_v2", "llama", "qwen2", "qwen3"})
    name_patterns = (r"deepseek-(v2\.5|v3|r1)",)
