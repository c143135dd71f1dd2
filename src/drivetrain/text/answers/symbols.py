"""Special tokens in a stream of text: each travels as one character that no text contains, half a surrogate pair.

So markers that are special tokens are found by their ids, and text that merely spells one stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from drivetrain.core.errors import InvalidRequest
from drivetrain.core.tokenizer import Tokenizer
from drivetrain.text.detokenizers import Utf8Stream

_FIRST, _LAST = 0xDC00, 0xDFFF


class Symbols:
    """The special tokens that a form uses, by spelling. Empty for an answer that is given as text."""

    def __init__(self, spellings: Iterable[str] = ()) -> None:
        ordered = sorted(set(spellings), key=lambda spelling: (-len(spelling), spelling))
        if len(ordered) > _LAST - _FIRST:
            raise InvalidRequest("the form has too many special tokens", param="form")
        self.by_spelling: Mapping[str, str] = {spelling: chr(_FIRST + i) for i, spelling in enumerate(ordered)}
        self._spellings = {symbol: spelling for spelling, symbol in self.by_spelling.items()}
        self._any_symbol = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
        self._any_spelling = re.compile("|".join(map(re.escape, ordered)) if ordered else "(?!)")

    def by_id(self, tokenizer: Tokenizer) -> dict[int, str]:
        """The symbols of those that the vocabulary has."""
        ids = ((tokenizer.id_of(spelling), symbol) for spelling, symbol in self.by_spelling.items())
        return {token_id: symbol for token_id, symbol in ids if token_id is not None}

    def encode(self, text: str) -> str:
        """Spellings become symbols: for markers, and for a prompt, which spells its special tokens."""
        return self._any_spelling.sub(lambda found: self.by_spelling[found.group()], text)

    def spell(self, text: str) -> str:
        if not self._spellings:
            return text
        return self._any_symbol.sub(lambda found: self._spellings.get(found.group(), ""), text)

    def drop(self, text: str) -> str:
        """A special token adds nothing to a text."""
        return self._any_symbol.sub("", text) if self._spellings else text


class IdReader:
    """Ids of one answer to text with symbols."""

    def __init__(self, tokenizer: Tokenizer, symbols: Symbols) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._utf8 = Utf8Stream()
        self._symbols = symbols.by_id(tokenizer)

    def read(self, ids: Iterable[int]) -> str:
        return "".join(map(self._read, ids))

    def _read(self, token_id: int) -> str:
        if token_id in self._symbols:
            return self._utf8.end() + self._symbols[token_id]
        return self._utf8.feed(self._detokenizer.push(token_id))
