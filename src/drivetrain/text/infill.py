"""Filling in the middle: the prompts that code models were trained on, by the special tokens of their vocabularies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer


class Side(Enum):
    """What the caller gives: the text in front of the gap, and the one behind it."""

    PREFIX = "prefix"
    SUFFIX = "suffix"


PREFIX, SUFFIX = Side.PREFIX, Side.SUFFIX


@dataclass(frozen=True, slots=True)
class InfillForm:
    """A row of the table: special tokens and the caller's texts, in the order of the training."""

    order: tuple[str | Side, ...]
    name_pattern: str | None = None
    """For a model that has the tokens of others in another order: searched in its names, lower-cased."""

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(part for part in self.order if isinstance(part, str))

    def prompt(self, prefix: str, suffix: str) -> Prompt:
        """What the caller wrote is literal: there a special token's name is plain text."""
        texts = {PREFIX: prefix, SUFFIX: suffix}
        parts = (Segment(p) if isinstance(p, str) else Segment(texts[p], literal=True) for p in self.order)
        return replace(Prompt.join(parts, add_bos=True), gap=(prefix, suffix))


INFILL_FORMS: tuple[InfillForm, ...] = (
    # Mellum has the tokens of StarCoder, and puts the suffix first (JetBrains' paper).
    InfillForm(("<fim_suffix>", SUFFIX, "<fim_prefix>", PREFIX, "<fim_middle>"), name_pattern="mellum"),
    # StarCoder, StarCoder2, Stable Code, Refact, CodeQwen1.5, Yi-Coder, Granite Code.
    InfillForm(("<fim_prefix>", PREFIX, "<fim_suffix>", SUFFIX, "<fim_middle>")),
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4.
    InfillForm(("<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>")),
    # SantaCoder.
    InfillForm(("<fim-prefix>", PREFIX, "<fim-suffix>", SUFFIX, "<fim-middle>")),
    # DeepSeek Coder, V2 and V3: the bars are U+FF5C and the spaces U+2581.
    InfillForm(("<｜fim▁begin｜>", PREFIX, "<｜fim▁hole｜>", SUFFIX, "<｜fim▁end｜>")),
    # Code Llama: the spaces are U+2581, and part of the names.
    InfillForm(("▁<PRE>", PREFIX, "▁<SUF>", SUFFIX, "▁<MID>")),
    # Codestral: the answer follows the prefix at once. Mistral's other vocabularies since v3 have the tokens too.
    InfillForm(("[SUFFIX]", SUFFIX, "[PREFIX]", PREFIX)),
    # Seed-Coder.
    InfillForm(("<[fim-suffix]>", SUFFIX, "<[fim-prefix]>", PREFIX, "<[fim-middle]>")),
)
"""The first one that the vocabulary has counts."""

_ENDS = frozenset({
    "<|endoftext|>", "▁<EOT>", "<EOT>", "<|EOT|>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>",
    "<file_sep>", "<|file_separator|>", "<|repo_name|>", "<repo_name>", "<reponame>", "<filename>",
})  # fmt: skip
"""What code models write behind a filled gap, besides their EOS: the end of the text, padding, or another file."""

INFILL_NAMES = frozenset(token for form in INFILL_FORMS for token in form.tokens) | _ENDS
"""Special tokens wherever a vocabulary has them as tokens of their own, though some files do not mark them as special:
no caller's text may forge one, and no answer shows one."""


@dataclass(frozen=True, slots=True)
class Infill:
    """A form in a vocabulary that has it."""

    form: InfillForm
    tokens: Mapping[str, int]
    """Each of them ends an answer: none can be part of what fills a gap."""

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset(self.tokens.values())


def infill_of(tokenizer: Tokenizer, *names: str) -> Infill | None:
    """The form for the model of these names, its own and its file's. None: its vocabulary has no tokens for it that are
    known here."""
    form = next((form for form in INFILL_FORMS if _fits(form, tokenizer, names)), None)
    if form is None:
        return None
    ids = {name: _special_id(tokenizer, name) for name in sorted(_ENDS.union(form.tokens))}
    return Infill(form, {name: i for name, i in ids.items() if i is not None})


def _fits(form: InfillForm, tokenizer: Tokenizer, names: Sequence[str]) -> bool:
    if form.name_pattern is not None and not any(re.search(form.name_pattern, name.lower()) for name in names):
        return False
    return all(_special_id(tokenizer, name) is not None for name in form.tokens)


def _special_id(tokenizer: Tokenizer, name: str) -> int | None:
    token_id = tokenizer.id_of(name)
    return token_id if token_id is not None and tokenizer.is_special(token_id) else None
