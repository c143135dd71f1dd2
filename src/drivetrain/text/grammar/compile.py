"""Compiles grammars for one model, and keeps the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.grammar.calls import answer_lark, check_rules
from drivetrain.text.grammar.lark import lark_of
from drivetrain.text.grammar.rules import AnswerRules
from drivetrain.text.grammar.tool_schemas import ToolSchemaTrial, with_any_arguments
from drivetrain.text.grammar.trial import Budget, Trial

if TYPE_CHECKING:
    from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary

KEPT = 64
KEPT_CHARS = 2_000_000
"""How many compiled grammars are kept, and of how many characters in all."""

Wanted = Constraint | AnswerRules
"""What a text must be, or all that an answer with calls or reasoning must be."""


class GrammarCompiler:
    """One per loaded model. `compile` and `warm` block; call them on a thread. `kept` may be called from anywhere.

    With `of_pieces`, `tokenizer` knows the bytes of what the engine says, and not its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], trial: Trial, *, of_pieces: bool = False) -> None:
        self._of_pieces = of_pieces
        self._tokenizer = tokenizer
        self._ends = ends
        self._trial = trial
        self._schemas = ToolSchemaTrial(trial)
        self._vocabulary: Vocabulary | None = None
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Wanted, CompiledGrammar] = OrderedDict()
        self._kept_chars = 0

    def warm(self) -> None:
        """What the first grammar would have to wait for: the vocabulary, and the process of trials."""
        self._trial.start()
        self._read_vocabulary()

    def kept(self, wanted: Wanted) -> CompiledGrammar | None:
        with self._lock:
            grammar = self._kept.get(wanted)
            if grammar is not None:
                self._kept.move_to_end(wanted)
            return grammar

    def compile(self, wanted: Wanted) -> CompiledGrammar:
        """Raises `InvalidRequest` for what cannot be honoured, saying what in it is the reason."""
        if (grammar := self.kept(wanted)) is not None:
            return grammar
        budget = Budget()
        if isinstance(wanted, Constraint):
            lark, followed = self._tried(wanted, budget), None
        else:
            rules = self._usable(wanted, budget)
            lark, followed = answer_lark(rules, self._tokenizer), self._followed(rules)
        from drivetrain.text.grammar.library import CompiledGrammar

        grammar = CompiledGrammar(lark, self._read_vocabulary(), followed)
        if grammar.fault:
            raise _unusable(wanted, grammar.fault)
        self._keep(wanted, grammar)
        return grammar

    def _tried(self, constraint: Constraint, budget: Budget) -> str:
        lark = lark_of(constraint)
        if fault := self._trial.run(lark, budget):
            raise _unusable(constraint, fault)
        return lark

    def _usable(self, rules: AnswerRules, budget: Budget) -> AnswerRules:
        """The parts are tried first, so that a fault is told of the part that has it."""
        check_rules(rules)
        if rules.content is not None and rules.content.form is not ConstraintForm.GRAMMAR:
            self._tried(rules.content, budget)
        rules = self._schemas.usable(rules, budget)
        fault = self._trial.run(answer_lark(rules), budget)
        if fault and rules.is_free:
            rules = replace(rules, tools=tuple(map(with_any_arguments, rules.tools)))
            fault = self._trial.run(answer_lark(rules))  # which takes next to nothing
        if fault:
            raise _unusable(rules, fault)
        return rules

    def _followed(self, rules: AnswerRules) -> str | None:
        """Of pieces, nobody here can count the tokens: a budget is the engine's to keep."""
        if not self._of_pieces or not rules.max_reasoning_tokens:
            return None
        return answer_lark(replace(rules, max_reasoning_tokens=None), self._tokenizer)

    def _read_vocabulary(self) -> Vocabulary:
        from drivetrain.text.grammar.library import Vocabulary

        with self._making:
            self._vocabulary = self._vocabulary or Vocabulary(self._tokenizer, self._ends)
            return self._vocabulary

    def _keep(self, wanted: Wanted, grammar: CompiledGrammar) -> None:
        with self._lock:
            self._kept[wanted] = grammar
            self._kept_chars += len(grammar.text)
            while len(self._kept) > KEPT or (self._kept_chars > KEPT_CHARS and len(self._kept) > 1):
                _, oldest = self._kept.popitem(last=False)
                self._kept_chars -= len(oldest.text)


def _unusable(wanted: Wanted, fault: str) -> InvalidRequest:
    param = "tools" if isinstance(wanted, AnswerRules) and wanted.tools else "constraint"
    verb = "cannot be honoured together" if param == "tools" else "cannot be honoured"
    return InvalidRequest(f"{param} {verb}: {fault}", param=param)
