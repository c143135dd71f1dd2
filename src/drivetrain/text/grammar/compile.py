"""Compiles grammars for one model, and keeps the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from drivetrain.core.constraint import Constraint
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.grammar.lark import lark_of
from drivetrain.text.grammar.trial import Trial

if TYPE_CHECKING:
    from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary

KEPT = 64
KEPT_CHARS = 2_000_000
"""How many compiled grammars are kept, and of how many characters in all."""


class GrammarCompiler:
    """One per loaded model. `compile` blocks; call it on a thread. `kept` may be called from anywhere."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], trial: Trial) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._trial = trial
        self._vocabulary: Vocabulary | None = None
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
        from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary

        self._vocabulary = self._vocabulary or Vocabulary(self._tokenizer, self._ends)
        grammar = CompiledGrammar(lark, self._vocabulary)
        if grammar.fault:
            raise _unusable(grammar.fault)
        self._keep(constraint, grammar)
        return grammar

    def _keep(self, constraint: Constraint, grammar: CompiledGrammar) -> None:
        with self._lock:
            self._kept[constraint] = grammar
            self._kept_chars += len(grammar.text)
            while len(self._kept) > KEPT or (self._kept_chars > KEPT_CHARS and len(self._kept) > 1):
                _, oldest = self._kept.popitem(last=False)
                self._kept_chars -= len(oldest.text)


def _unusable(fault: str) -> InvalidRequest:
    return InvalidRequest(f"constraint cannot be honoured: {fault}", param="constraint")
