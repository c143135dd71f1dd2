"""Compiles grammars for one model, and keeps the last ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from drivetrain.core.constraint import Constraint, ConstraintForm
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import LONGEST_PIECE, Tokenizer, check_wanted
from drivetrain.text.grammar.calls import answer_lark, check_rules
from drivetrain.text.grammar.lark import is_gbnf, lark_of
from drivetrain.text.grammar.room import Room, fit
from drivetrain.text.grammar.rules import AnswerRules
from drivetrain.text.grammar.tool_schemas import ToolSchemaTrial, with_any_arguments
from drivetrain.text.grammar.trial import Budget, Trial

if TYPE_CHECKING:
    from drivetrain.text.grammar.library import CompiledGrammar, Vocabulary

KEPT = 64
KEPT_BYTES = 256 * 2**20
"""How many compiled grammars are kept, and of how many bytes in all: what each needed in its trial, and its text."""

Wanted = Constraint | AnswerRules
"""What a text must be, or all that an answer with calls or reasoning must be."""


class GrammarCompiler:
    """One per loaded model. `compile` and `warm` block; call them on a thread. `kept` may be called from anywhere.

    `context_length` is the model's, in its own tokens. With `of_pieces`, `tokenizer` knows the bytes of what the engine
    says, and not its tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        trial: Trial,
        *,
        context_length: int,
        of_pieces: bool = False,
    ) -> None:
        self._of_pieces = of_pieces
        self._context_length = context_length
        self._tokenizer = tokenizer
        self._ends = ends
        self._trial = trial
        self._schemas = ToolSchemaTrial(trial)
        self._vocabulary: Vocabulary | None = None
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Wanted, tuple[CompiledGrammar, int]] = OrderedDict()
        self._kept_bytes = 0

    def warm(self) -> None:
        """What the first grammar would have to wait for: the vocabulary, and the process of trials."""
        self._trial.start()
        self._read_vocabulary()

    def kept(self, wanted: Wanted) -> CompiledGrammar | None:
        with self._lock:
            if wanted not in self._kept:
                return None
            self._kept.move_to_end(wanted)
            return self._kept[wanted][0]

    def compile(self, wanted: Wanted) -> CompiledGrammar:
        """Raises `InvalidRequest` for what cannot be honoured, saying what in it is the reason."""
        if (grammar := self.kept(wanted)) is not None:
            return grammar
        budget = Budget()
        fitting = self._fitting(wanted, budget)
        if isinstance(fitting, Constraint):
            lark, followed = self._tried(fitting, budget), None
        else:
            rules = self._usable(fitting, budget)
            lark, followed = answer_lark(rules, self._tokenizer), self._followed(rules)
        from drivetrain.text.grammar.library import CompiledGrammar

        check_wanted()
        grammar = CompiledGrammar(lark, self._read_vocabulary(), followed)
        if grammar.fault:
            raise _unusable(wanted, grammar.fault)
        self._keep(wanted, grammar, len(lark) + budget.held_bytes)
        return grammar

    def _fitting(self, wanted: Wanted, budget: Budget) -> Wanted:
        """Without counts that limit nothing, and GBNF as Lark."""
        if isinstance(wanted, AnswerRules):
            return wanted if wanted.content is None else replace(wanted, content=self._fit(wanted.content, budget))
        return self._fit(wanted, budget)

    def _fit(self, constraint: Constraint, budget: Budget) -> Constraint:
        constraint = fit(constraint, self._room())
        if constraint.form is not ConstraintForm.GRAMMAR or not is_gbnf(constraint.source):
            return constraint
        lark, fault = self._trial.from_gbnf(constraint.source, budget)
        if fault:
            raise _unusable(constraint, fault)
        return replace(constraint, source=lark)

    def _room(self) -> Room:
        length = self._context_length
        chars = length * (LONGEST_PIECE if self._of_pieces else self._tokenizer.longest_piece)
        if self._of_pieces:
            return Room(length, chars, items=chars)
        return Room(length, chars, items=length * self._read_vocabulary().most_separators + 1)

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
        rules = self._schemas.usable(rules, budget, self._room())
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

    def _keep(self, wanted: Wanted, grammar: CompiledGrammar, size_bytes: int) -> None:
        with self._lock:
            _, before = self._kept.pop(wanted, (None, 0))  # two callers may have wanted it at once
            self._kept[wanted] = grammar, size_bytes
            self._kept_bytes += size_bytes - before
            while len(self._kept) > KEPT or (self._kept_bytes > KEPT_BYTES and len(self._kept) > 1):
                _, (_, oldest) = self._kept.popitem(last=False)
                self._kept_bytes -= oldest


def _unusable(wanted: Wanted, fault: str) -> InvalidRequest:
    param = "tools" if isinstance(wanted, AnswerRules) and wanted.tools else "constraint"
    verb = "cannot be honoured together" if param == "tools" else "cannot be honoured"
    return InvalidRequest(f"{param} {verb}: {fault}", param=param)
