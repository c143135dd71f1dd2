"""The text of a grammar as it is built: its rules, and how the markers of a form are spelled in them.

Markers that are special tokens of the model are written as ids, so text that spells one stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.grammar.lark import literal, regex

TEXT = "TEXT"


class GrammarText:
    """Collects the rules of one grammar. Without a `tokenizer` all markers are text."""

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._ids = {} if tokenizer is None else _special_ids(tokenizer)
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "((?!))")
        self._shared: dict[tuple[str, str], str] = {}
        self._rules: dict[str, str] = {TEXT: r"TEXT: /(.|\n)*/"}

    def text(self, start: str) -> str:
        return "\n".join((f"start: {start}", *self._rules.values(), ""))

    def rule(self, name: str, body: str, options: str = "") -> str:
        """Define it, and return its name. One that exists stays."""
        self._rules.setdefault(name, f"{name}{f'[{options}]' if options else ''}: {body}")
        return name

    def change(self, name: str, body: str) -> None:
        self._rules[name] = f"{name}: {body}"

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def terms(self, text: str) -> str:
        """Exactly this text, in which markers are spelled."""
        return " ".join(self._term(piece) for piece in self._pieces(text))

    def begins_special(self, marker: str) -> bool:
        return self._pieces(marker)[0] in self._ids

    def has_special(self, marker: str) -> bool:
        return any(piece in self._ids for piece in self._pieces(marker))

    def opening(self, marker: str, before: str = "") -> str:
        """The marker, where free text might come instead. `before` is a regex for what a marker of text may follow."""
        first, *rest = self._pieces(marker)
        if first in self._ids:
            return self.terms(marker)
        body = f"{regex(before)} {literal(first)}" if before else literal(first)
        begun = self.shared("OPENING", body) if self.has_special(marker) else self.shared("opening", body, "lazy")
        return " ".join((begun, *map(self._term, rest)))

    def upto(self, marker: str, text: str = TEXT, max_tokens: int | None = None) -> str:
        """Text that ends with the first such marker. After `max_tokens` the marker must come."""
        first, *rest = self._pieces(marker)
        end = " ".join(map(self._term, rest))
        if max_tokens == 0:
            return self.terms(marker)
        limit = "" if max_tokens is None else f"max_tokens={max_tokens}"
        limited = text if max_tokens is None else self.shared("limited", text, limit)
        if first in self._ids:
            return f"{limited} {self.terms(marker)}"
        if self.has_special(marker) and max_tokens is None:  # text may spell the first piece: the token decides
            return f"{self.shared('ENDED', f'{text} {literal(first)}')} {end}"
        ended = self.shared("ended", f"{text} {literal(first)}", f"lazy, {limit}" if limit else "lazy")
        if max_tokens is None:
            return f"{ended} {end}"
        # At the limit llguidance ends the rule that stands first, also in the middle of the marker: the one before it.
        return f"({limited} {literal(first)} | {ended}) {end}"

    def except_for(self, pattern: str, name: str) -> str:
        """A terminal: all text that does not match this regex as a whole."""
        return self.rule(name, f"{TEXT} & ~{regex(pattern)}")

    def shared(self, stem: str, body: str, options: str = "") -> str:
        """The rule with this body; the one that exists, if there is one."""
        return self.rule(self._shared.setdefault((body, options), f"{stem}_{len(self._shared)}"), body, options)

    def _pieces(self, text: str) -> list[str]:
        return [piece for piece in self._special.split(text) if piece]

    def _term(self, piece: str) -> str:
        return f"<[{self._ids[piece]}]>" if piece in self._ids else literal(piece)


def either(alternatives: Iterable[str]) -> str:
    return f"({' | '.join(alternatives)})"


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    found = ((token, tokenizer.id_of(token)) for token in tokenizer.special_strings)
    return {token: token_id for token, token_id in found if token_id is not None and tokenizer.is_special(token_id)}
