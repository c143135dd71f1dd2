"""What llguidance does for us: vocabularies, compiled grammars, and the matchers that follow them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.byte_tokenizer import ByteTokenizer

MAX_FAULT_CHARS = 300

_LIMITS = LLParserLimits(max_lexer_states=50_000)
"""A matcher takes up to 2 KB for each, and an answer has one here and one in the engine."""


class Vocabulary:
    """All that grammars need to know of a model. Making it reads every piece of the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self.ends = ends
        spellings, special = _Spellings(tokenizer, ends), tokenizer.is_special
        # it is asked for the attributes of a wrapper
        self.inner = LLTokenizer(cast("TokenizerWrapper", spellings), eos_token=sorted(ends) or None)
        pieces = (len(_SEPARATORS.findall(piece)) for i, piece in enumerate(spellings.tokens) if not special(i))
        self.most_separators = max(pieces, default=1)
        """Of JSON, within one token."""


class CompiledGrammar:
    """As in `core/constraint.py`. Of no use if it has a `fault`.

    Its matchers follow `followed`, which is `text` without what only the engine can tell; None: all can be told.
    """

    def __init__(self, text: str, vocabulary: Vocabulary, followed: str | None = None) -> None:
        self.text = text
        self.ends = vocabulary.ends
        self.vocab_size = vocabulary.inner.vocab_size
        self._first = LLMatcher(vocabulary.inner, followed or text, log_level=0, limits=_LIMITS)

    @property
    def fault(self) -> str:
        return brief(self._first.get_error())

    def matcher(self) -> GrammarMatcher:
        return GrammarMatcher(self._first.deep_copy())


class GrammarMatcher:
    """As in `core/constraint.py`."""

    def __init__(self, inner: LLMatcher) -> None:
        self._inner = inner

    def take(self, ids: Sequence[int]) -> bool:
        taken: bool = self._inner.consume_tokens(list(ids))
        return taken

    @property
    def may_end(self) -> bool:
        accepting: bool = self._inner.is_accepting()
        return accepting

    @property
    def must_end(self) -> bool:
        return bool(self._inner.is_stopped()) and not self._inner.is_error()

    @property
    def fault(self) -> str:
        return brief(self._inner.get_error())

    def forced(self) -> list[int]:
        ids: list[int] = self._inner.compute_ff_tokens()
        return ids

    def write_mask(self, address: int, size: int) -> None:
        self._inner.unsafe_compute_mask_ptr(address, size)


ByteMatcher = LLMatcher


def byte_matcher(lark: str) -> ByteMatcher:
    """Over a vocabulary of single bytes, whose ids are their values."""
    return LLMatcher(_bytes_vocabulary().inner, lark, log_level=0, limits=_LIMITS)


def byte_ids(mask: bytes) -> list[int]:
    """The bytes that a mask of that vocabulary allows."""
    return [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]


NOTHING = "no text satisfies it"

_SEPARATORS = re.compile(rb",+")  # two of them have something in between
_TOO_WIDE = "Parser Error: Current row has "
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
_SHOWN_SOURCE = re.compile(r"\n\s*\d+ \|.*", re.DOTALL)
_STATE = re.compile(r"\s*<state>.*", re.DOTALL)
_ENDLESS = re.compile(r"Too many items \(limit \d+; ff_tokens\)")


def explained(error: str) -> str:
    """As `brief`, and never empty."""
    return brief(error) or "it cannot be compiled"


def brief(error: str) -> str:
    """The library's message without what the caller never saw: a place in the grammar, the state of a parser."""
    if error.startswith("panic"):
        return "it is too large to compile"
    if error.startswith("NoExtension"):
        return NOTHING
    if "coerce_one_of" in error:
        return "oneOf is honoured only where no two of its schemas can hold at once; use anyOf"
    if _TOO_WIDE in error:
        return "too much may come at one place, such as an object's optional properties: make some of them required"
    if _ENDLESS.search(error):
        return "it forces a text that never ends, or is too long"
    shown = _STATE.sub("", _SHOWN_SOURCE.sub("", _PLACE.sub("", error)))
    return " ".join(shown.split())[:MAX_FAULT_CHARS]


@lru_cache(maxsize=1)
def _bytes_vocabulary() -> Vocabulary:
    tokenizer = ByteTokenizer()
    end = tokenizer.id_of(tokenizer.eos_token or "")
    return Vocabulary(tokenizer, frozenset() if end is None else frozenset({end}))


class _Spellings:
    """What llguidance wants to know of a vocabulary, and how a text is split.

    It splits what a grammar forces. Where that would ask another process, or where the tokenizer splits a text as if it
    stood at the beginning of a prompt, the longest pieces are taken.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i)]
        self.eos_token_id = min(ends, default=min(self.special_token_ids, default=0))
        self.bos_token_id: int | None = None
        self._tokenizer = tokenizer
        special = frozenset(self.special_token_ids)
        self._ids = {data: i for i, data in reversed(list(enumerate(self.tokens))) if data and i not in special}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str) -> list[int]:
        data = text.encode()
        if not self._tokenizer.waits:
            ids = self._tokenizer.encode(Prompt((Segment(text, literal=True),)))
            if b"".join(self.tokens[i] for i in ids) == data:
                return ids
        return self._longest_pieces(data)

    def _longest_pieces(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            end = next((end for end in ends if data[at:end] in self._ids), None)
            if end is None:
                return ids  # no piece of the vocabulary begins so
            ids.append(self._ids[data[at:end]])
            at = end
        return ids
