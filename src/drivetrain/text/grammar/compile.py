"""Compiles grammars for one model with llguidance, the only place that knows this library, and keeps the last ones."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from drivetrain.core.constraint import Constraint
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.prompt import Prompt, Segment
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.grammar.lark import lark_of
from drivetrain.text.grammar.trial import Trial

KEPT = 64
KEPT_CHARS = 2_000_000
"""How many compiled grammars are kept, and of how many characters in all."""

MAX_FAULT_CHARS = 300


class GrammarCompiler:
    """One per loaded model. `compile` blocks; call it on a thread. `kept` may be called from anywhere."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], trial: Trial) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._trial = trial
        self._vocabulary: Any = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        self._kept_chars = 0

    def kept(self, constraint: Constraint) -> CompiledGrammar | None:
        with self._lock:
            grammar = self._kept.get(constraint)
            if grammar is not None:
                self._kept.move_to_end(constraint)
            return grammar

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Raises `InvalidRequest` for a constraint that cannot be honoured, saying what in it is the reason."""
        if (grammar := self.kept(constraint)) is not None:
            return grammar
        lark = lark_of(constraint)
        if fault := self._trial.run(lark):
            raise _unusable(fault)
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self._ends)
        matcher = _matcher(self._vocabulary, lark)
        if matcher.is_error():
            raise _unusable(brief(matcher.get_error()))
        grammar = CompiledGrammar(lark, matcher, self._ends)
        self._keep(constraint, grammar)
        return grammar

    def _keep(self, constraint: Constraint, grammar: CompiledGrammar) -> None:
        with self._lock:
            self._kept[constraint] = grammar
            self._kept_chars += len(grammar.text)
            while len(self._kept) > KEPT or (self._kept_chars > KEPT_CHARS and len(self._kept) > 1):
                _, oldest = self._kept.popitem(last=False)
                self._kept_chars -= len(oldest.text)


class CompiledGrammar:
    """As in `core/constraint.py`."""

    def __init__(self, text: str, first: Any, ends: frozenset[int]) -> None:
        self.text = text
        self.ends = ends
        self._first = first

    def matcher(self) -> GrammarMatcher:
        return GrammarMatcher(self._first.deep_copy())


class GrammarMatcher:
    """As in `core/constraint.py`."""

    def __init__(self, inner: Any) -> None:
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


def fault_of(lark: str) -> str:
    """What is wrong with a grammar, over a vocabulary of single bytes; empty if nothing is."""
    matcher = _matcher(_bytes_vocabulary(), lark)
    if matcher.is_error():
        return brief(matcher.get_error()) or "it cannot be compiled"
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return brief(matcher.get_error())
    return "" if any(mask) else NOTHING


NOTHING = "no text satisfies it"

_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?")
_SHOWN_SOURCE = re.compile(r"\n\s*\d+ \|.*", re.DOTALL)


def brief(error: str) -> str:
    """The library's message without the place in a grammar that the caller never saw."""
    if error.startswith("panic"):
        return "it is too large to compile"
    if error.startswith("NoExtension"):
        return NOTHING
    return " ".join(_SHOWN_SOURCE.sub("", _PLACE.sub("", error)).split())[:MAX_FAULT_CHARS]


def _unusable(fault: str) -> InvalidRequest:
    return InvalidRequest(f"constraint cannot be honoured: {fault}", param="constraint")


def _matcher(vocabulary: Any, lark: str) -> Any:
    from llguidance import LLMatcher

    return LLMatcher(vocabulary, lark, log_level=0)


def _vocabulary(tokenizer: Tokenizer, ends: frozenset[int]) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(_Spellings(tokenizer, ends), eos_token=sorted(ends) or None)


@lru_cache(maxsize=1)
def _bytes_vocabulary() -> Any:
    from drivetrain.text.byte_tokenizer import ByteTokenizer

    tokenizer = ByteTokenizer()
    end = tokenizer.id_of(tokenizer.eos_token or "")
    return _vocabulary(tokenizer, frozenset() if end is None else frozenset({end}))


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
