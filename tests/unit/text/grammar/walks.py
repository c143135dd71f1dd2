"""Random answers that a grammar lets through: what a model without any sense would write."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Sequence

from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.grammar.library import CompiledGrammar, GrammarMatcher

LETTERS = b'abcxyz 019.-_\n"\\<>/{}[],:&\xc3\xa9\xe6\x9d\xb1'
LONG = 250
"""After as many steps a walk looks for an end."""
CLOSERS = (b"/", b">", b"=", b":", b'"', b"]", b"}", b")", b"<", b",", b"\n", b"a", b"0")


class Walk:
    """`hints` are texts and special tokens that a walk tries to write now and then: no luck would find a marker."""

    def __init__(self, grammar: CompiledGrammar, tokenizer: Tokenizer, hints: Sequence[str], seed: int) -> None:
        self._ends = grammar.ends
        self._rng = random.Random(seed)
        self._matcher: GrammarMatcher = grammar.matcher()
        self._tokenizer = tokenizer
        self._size = (grammar.vocab_size + 31) // 32 * 4
        self._pieces = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
        self._hints = [self._spelled(hint) for hint in hints]
        self.ids: list[int] = []

    def run(self, most: int = 4000) -> list[int]:
        while len(self.ids) < most:
            if self._matcher.must_end or (self._matcher.may_end and self._rng.random() < self._patience()):
                return self.ids
            allowed = self.allowed()
            assert allowed, self._matcher.fault or "nothing may follow"
            if not self._follow_hint(allowed):
                self._take(self._choose(allowed))
        raise AssertionError(f"the answer does not end: …{self._tokenizer.decode(self.ids[-200:], skip_special=False)}")

    def write(self, text: str) -> int:
        """Text or markers. Returns how many ids they are."""
        for token_id in self._spelled(text):
            self._take(token_id)
        return len(self.ids)

    def allowed(self) -> list[int]:
        mask = (ctypes.c_uint8 * self._size)()
        self._matcher.write_mask(ctypes.addressof(mask), self._size)
        assert not self._matcher.fault
        bits = int.from_bytes(bytes(mask), "little")
        return [i for i in range(self._tokenizer.vocab_size) if bits >> i & 1 and i not in self._ends]

    def _patience(self) -> float:
        return 0.05 if len(self.ids) < LONG else 0.9

    def _follow_hint(self, allowed: list[int]) -> bool:
        if len(allowed) < 3 or self._rng.random() > (0.2 if 0 < len(self.ids) < LONG else 0.6):
            return False
        fitting = [hint for hint in self._hints if hint and hint[0] in allowed]
        if not fitting:
            return False
        for token_id in self._rng.choice(fitting):
            if token_id not in self.allowed():
                break
            self._take(token_id)
        return True

    def _choose(self, allowed: list[int]) -> int:
        if len(self.ids) > LONG:
            closing = [self._pieces[c] for c in CLOSERS if self._pieces.get(c) in allowed]
            special = [i for i in allowed if self._tokenizer.is_special(i)]
            if special or closing:
                return self._rng.choice([*special, *closing])
        if len(allowed) > 40 and self._rng.random() < 0.8:
            likely = [self._pieces[bytes((b,))] for b in LETTERS if self._pieces.get(bytes((b,))) in allowed]
            if likely:
                return self._rng.choice(likely)
        return self._rng.choice(allowed)

    def _take(self, token_id: int) -> None:
        assert self._matcher.take([token_id]), (self.ids, token_id)
        self.ids.append(token_id)

    def _spelled(self, text: str) -> list[int]:
        pattern = "|".join(map(re.escape, sorted(self._tokenizer.special_strings, key=len, reverse=True)))
        ids: list[int] = []
        for piece in re.split(f"({pattern})", text):
            token_id = self._tokenizer.id_of(piece)
            if token_id is not None and self._tokenizer.is_special(token_id):
                ids.append(token_id)
            else:
                ids += [self._pieces[bytes((b,))] for b in piece.encode()]
        return ids
