"""The tokenizer port over a tokenizer of the `transformers` library, which the caller has already loaded."""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from drivetrain.core.prompt import Prompt
from drivetrain.core.tokenizer import Detokenizer
from drivetrain.text.detokenizers import TableDetokenizer, WindowDetokenizer
from drivetrain.text.pieces import PieceRule, piece_rule
from drivetrain.text.spans import find_specials


class HfTokenizer:
    """Never changes the tokenizer it is given: what needs other settings is done on a copy of its own.

    The fast (Rust) ones are used through their backend, which many threads may read at once; the others are
    guarded by a lock.
    """

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._placeholder = f"\ue000{secrets.token_hex(16)}\ue001"  # nobody can spell what nobody knows
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend = _copy(self._backend)
        self._rule = self._read_rule()
        self._special_ids = frozenset(
            token_id for token_id, added in tokenizer.added_tokens_decoder.items() if added.special
        )
        self._table: list[bytes | None] = [None] * self.vocab_size
        self._chat_template = chat_template if chat_template is not None else _template_source(tokenizer)

    @property
    def waits(self) -> bool:
        return self._backend is None

    @cached_property
    def vocab_size(self) -> int:
        return max(len(self._tokenizer), max(self._vocabulary.values(), default=-1) + 1)

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """Read once: the library makes it anew, some tens of milliseconds, each time it is asked."""
        return dict(self._tokenizer.get_vocab())

    @cached_property
    def bos_token(self) -> str | None:
        token: str | None = self._tokenizer.bos_token
        return token

    @cached_property
    def eos_token(self) -> str | None:
        token: str | None = self._tokenizer.eos_token
        return token

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @cached_property
    def special_strings(self) -> frozenset[str]:
        added = self._tokenizer.added_tokens_decoder
        return frozenset(text for i in self._special_ids if (text := added[i].content).strip())

    def encode(self, prompt: Prompt) -> list[int]:
        spans = [find_specials(s.text, self.special_strings) if s.literal else [] for s in prompt.segments]
        if not any(spans):
            return self._encode(prompt.text, add_bos=prompt.add_bos)
        if self._backend is None:
            return self._encode_by_segment(prompt)
        return self._encode_with_literals(prompt, spans)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        if self._rule is None:
            return self._decode_by_library(ids, skip_special=skip_special)
        detokenizer = TableDetokenizer(
            self._bytes_in_text if skip_special else self.token_bytes, strip_first=self._rule.strip_first
        )
        return b"".join(map(detokenizer.push, ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._special_ids:
            content: str = self._tokenizer.added_tokens_decoder[token_id].content
            return content.encode()
        return self._bytes_in_text(token_id)

    def id_of(self, token: str) -> int | None:
        if self._backend is not None:
            found: int | None = self._backend.token_to_id(token)
            return found
        return self._vocabulary.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        if self._rule is None:
            context = [i for i in prefix[-64:] if i not in self._special_ids]
            return WindowDetokenizer(self._decode_by_library, context)
        at_start = all(i in self._special_ids for i in reversed(prefix))
        return TableDetokenizer(self._bytes_in_text, strip_first=self._rule.strip_first and at_start)

    def _read_rule(self) -> PieceRule | None:
        if self._backend is None:
            return None
        return piece_rule(json.loads(self._backend.to_str())["decoder"])

    def _bytes_in_text(self, token_id: int) -> bytes:
        """Nothing for special tokens and for ids past the vocabulary (padded output heads sample those)."""
        if not 0 <= token_id < len(self._table):
            return b""
        known = self._table[token_id]
        if known is None:
            known = self._table[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._special_ids:
            return b""
        if self._rule is None:
            return self._decode_by_library([token_id]).encode("utf-8", "replace")
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None else self._rule.to_bytes(piece)

    def _encode(self, text: str, *, add_bos: bool) -> list[int]:
        if self._backend is None:
            with self._lock:
                ids = [int(i) for i in self._tokenizer.encode(text, add_special_tokens=add_bos)]
        else:
            ids = list(self._backend.encode(text, add_special_tokens=add_bos).ids)
        if add_bos and self.bos_token and ids[:1] * 2 == ids[:2] == [self.id_of(self.bos_token)] * 2:
            return ids[1:]  # the text spelled a BOS itself
        return ids

    def _encode_with_literals(self, prompt: Prompt, spans: list[list[tuple[int, int]]]) -> list[int]:
        """Encode whole, with a placeholder token for each literal span; then put the span's plain ids there."""
        parts: list[str] = []
        literals: list[str] = []
        for segment, found in zip(prompt.segments, spans, strict=True):
            at = 0
            for start, end in found:
                parts += [segment.text[at:start], self._placeholder]
                literals.append(segment.text[start:end])
                at = end
            parts.append(segment.text[at:])
        whole, plain, placeholder = self._literal_tokenizers
        ids: list[int] = []
        waiting = deque(literals)
        for token_id in whole.encode("".join(parts), add_special_tokens=prompt.add_bos).ids:
            if token_id == placeholder:
                ids += self._encode_plain(plain, waiting.popleft())
            else:
                ids.append(token_id)
        return ids

    def _encode_plain(self, plain: Any, text: str) -> list[int]:
        """A Unigram model finds a special token even as a plain piece of its vocabulary; then cut the text in two."""
        ids: list[int] = plain.encode(text, add_special_tokens=False).ids
        if len(text) < 2 or not self._special_ids.intersection(ids) - {self._tokenizer.unk_token_id}:
            return ids
        half = len(text) // 2
        return self._encode_plain(plain, text[:half]) + self._encode_plain(plain, text[half:])

    def _encode_by_segment(self, prompt: Prompt) -> list[int]:
        """Without a Rust backend, special tokens can only be split in the whole of a text, so go by segments."""
        ids: list[int] = []
        with self._lock:
            for i, segment in enumerate(prompt.segments):
                ids += self._tokenizer.encode(
                    segment.text,
                    add_special_tokens=prompt.add_bos and i == 0,
                    split_special_tokens=segment.literal,
                )
        return ids

    @cached_property
    def _literal_tokenizers(self) -> tuple[Any, Any, int]:
        from tokenizers import AddedToken

        whole, plain = _copy(self._backend), _copy(self._backend)
        whole.add_special_tokens([AddedToken(self._placeholder, special=True, normalized=False)])
        plain.encode_special_tokens = True
        return whole, plain, int(whole.token_to_id(self._placeholder))

    def _decode_by_library(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        with self._lock:
            text: str = self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        return text


def _copy(backend: Any) -> Any:
    copy = type(backend).from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _template_source(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None
