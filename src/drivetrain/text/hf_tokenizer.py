"""The tokenizer port over a `transformers` tokenizer that the caller has loaded."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

from drivetrain.core.prompt import Prompt, apart, find_specials, own_specials
from drivetrain.core.tokenizer import LONGEST_PIECE, Detokenizer, check_wanted
from drivetrain.text.detokenizers import TableDetokenizer, WindowDetokenizer
from drivetrain.text.infill import INFILL_NAMES
from drivetrain.text.pieces import knows_all_bytes, piece_rule

LONG_CHARS = 2000
"""About two milliseconds of work."""


class HfTokenizer:
    """Never changes the tokenizer it is given: work that needs other settings uses a copy.

    Fast (Rust) tokenizers are used through their backend, which many threads may read at once; others are guarded by a
    lock.
    """

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._placeholders = {  # random, so that no caller can spell one
            strips: f"\ue000{secrets.token_hex(16)}\ue001" for strips in product((False, True), repeat=2)
        }
        self._cut: dict[int, Sequence[int]] = {}
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        parts: dict[str, Any] = {}
        if self._backend is not None:
            source = self._backend.to_str()
            self._backend, parts = _copy(self._backend, source), json.loads(source)
        self._rule = piece_rule(parts["decoder"]) if parts else None
        self._knows_all_bytes = bool(parts) and knows_all_bytes(parts["model"])
        self._special_ids = frozenset(
            token_id
            for token_id, added in tokenizer.added_tokens_decoder.items()
            if added.special or added.content in INFILL_NAMES
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
    def longest_piece(self) -> int:
        """Models that do not know all bytes may turn a whole unknown word into one token, or drop characters."""
        return max(map(len, self._vocabulary), default=1) if self._knows_all_bytes else LONGEST_PIECE

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """Cached: the library builds it anew, in tens of milliseconds, on each call."""
        return dict(self._tokenizer.get_vocab())

    @cached_property
    def _spelled_ids(self) -> frozenset[int]:
        """The ids of special tokens, but not of the unknown token, which stands for any character without a token."""
        return frozenset(self._vocabulary[text] for text in self.special_strings - {self._tokenizer.unk_token})

    @cached_property
    def bos_token(self) -> str | None:
        token: str | None = self._tokenizer.bos_token
        return token

    @cached_property
    def eos_token(self) -> str | None:
        token: str | None = self._tokenizer.eos_token
        return token

    @cached_property
    def pad_token(self) -> str | None:
        token: str | None = self._tokenizer.pad_token
        return token

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        template = getattr(self._tokenizer, "response_template", None)
        return template if isinstance(template, Mapping) else None

    @cached_property
    def special_strings(self) -> frozenset[str]:
        added = self._tokenizer.added_tokens_decoder
        return frozenset(text for i in self._special_ids if (text := added[i].content).strip())

    def encode(self, prompt: Prompt) -> list[int]:
        """The library encodes the whole text, unless it would find special tokens that are not ours."""
        check_wanted()
        if not any(segment.literal for segment in prompt.segments):
            return self._without_second_bos(self._encode(prompt.text, add_bos=prompt.add_bos)[0], prompt)
        text, own = prompt.text, own_specials(prompt, self.special_strings)
        if own == find_specials(text, self.special_strings):
            ids, specials = self._encode(text, add_bos=prompt.add_bos)
            if specials is None or specials == self._specials([self._vocabulary[text[a:b]] for a, b in own]):
                return self._without_second_bos(ids, prompt)
        ids = self._encode_in_parts(prompt) if self._backend is None else self._encode_apart(prompt)
        return self._without_second_bos(ids, prompt)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Two texts with the tokenizer's own special tokens around them, and for each id which text it is of. In the
        texts themselves, a special token's spelling is plain text."""
        check_wanted()
        if self._backend is None:
            with self._lock:
                found = self._tokenizer(first, second, split_special_tokens=True, return_token_type_ids=True)
            return [int(i) for i in found["input_ids"]], [int(i) for i in found["token_type_ids"]]
        encoding = self._plain_text_encoder[0].encode_batch_fast([(first, second)])[0]
        ids: list[int] = []
        types: list[int] = []
        marks = zip(encoding.ids, encoding.type_ids, encoding.special_tokens_mask, strict=True)
        for token_id, type_id, framing in marks:
            pieces = (token_id,) if framing or not self._specials((token_id,)) else self._in_pieces(token_id)
            ids += pieces
            types += [type_id] * len(pieces)
        return ids, types

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
            token_id: int | None = self._backend.token_to_id(token)
            return token_id
        return self._vocabulary.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        if self._rule is None:
            context = [i for i in prefix[-64:] if i not in self._special_ids]
            return WindowDetokenizer(self._decode_by_library, context)
        at_start = all(i in self._special_ids for i in reversed(prefix))
        return TableDetokenizer(self._bytes_in_text, strip_first=self._rule.strip_first and at_start)

    def _bytes_in_text(self, token_id: int) -> bytes:
        """Empty for special tokens and for ids past the vocabulary (padded output heads sample those)."""
        if not 0 <= token_id < len(self._table):
            return b""
        data = self._table[token_id]
        if data is None:
            data = self._table[token_id] = self._spell(token_id)
        return data

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._special_ids:
            return b""
        if self._rule is None:
            return self._decode_by_library([token_id]).encode("utf-8", "replace")
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None else self._rule.to_bytes(piece)

    def _encode(self, text: str, *, add_bos: bool) -> tuple[list[int], list[int] | None]:
        """The ids, and those of them that are special tokens spelled in the text (None if the library cannot tell)."""
        if self._backend is None:
            with self._lock:
                return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=add_bos)], None
        encoding = _encoding(self._backend, text, add_special_tokens=add_bos)
        ids: list[int] = encoding.ids
        if self._spelled_ids.isdisjoint(ids):
            return ids, []
        spelled = (i for i, framing in zip(ids, encoding.special_tokens_mask, strict=True) if not framing)
        return ids, self._specials(spelled)

    def _specials(self, ids: Iterable[int]) -> list[int]:
        return [i for i in ids if i in self._spelled_ids]

    def _without_second_bos(self, ids: list[int], prompt: Prompt) -> list[int]:
        """The text may spell a BOS itself."""
        if prompt.add_bos and self.bos_token and ids[:1] * 2 == ids[:2] == [self.id_of(self.bos_token)] * 2:
            return ids[1:]
        return ids

    def _encode_apart(self, prompt: Prompt) -> list[int]:
        """Encode as a whole, with placeholders for our own special tokens, by a tokenizer that finds no others."""
        encoder, placeholders = self._plain_text_encoder
        parts = apart(prompt, self.special_strings)
        own = iter([self._vocabulary[text] for text, special in parts if special])
        text = "".join(self._placeholder_of(text) if special else text for text, special in parts)
        encoding = _encoding(encoder, text, add_special_tokens=prompt.add_bos)
        ids: list[int] = []
        for token_id, framing in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            if token_id in placeholders:
                ids.append(next(own))
            elif framing or not self._specials((token_id,)):
                ids.append(token_id)
            else:
                ids += self._in_pieces(token_id)
        return ids

    def _placeholder_of(self, special: str) -> str:
        return self._placeholders[_strips(self._tokenizer.added_tokens_decoder[self._vocabulary[special]])]

    def _in_pieces(self, token_id: int) -> Sequence[int]:
        """Some models find a special token as a plain piece of the vocabulary too: then its name is cut in two."""
        if token_id not in self._cut:
            self._cut[token_id] = self._encode_halves(self._tokenizer.added_tokens_decoder[token_id].content)
        return self._cut[token_id]

    def _encode_halves(self, text: str) -> list[int]:
        ids: list[int] = []
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):
            half_ids: list[int] = self._plain_text_encoder[0].encode(half, add_special_tokens=False).ids
            ids += self._encode_halves(half) if self._specials(half_ids) and len(half) > 1 else half_ids
        return ids

    def _encode_in_parts(self, prompt: Prompt) -> list[int]:
        """Without a Rust backend, special tokens can be split either all over a text or not at all."""
        ids: list[int] = []
        with self._lock:
            for i, (text, special) in enumerate(apart(prompt, self.special_strings)):
                ids += self._tokenizer.encode(
                    text, add_special_tokens=prompt.add_bos and i == 0, split_special_tokens=not special
                )
        return ids

    @cached_property
    def _plain_text_encoder(self) -> tuple[Any, frozenset[int]]:
        """With the ids of its placeholders."""
        from tokenizers import AddedToken

        encoder = _copy(self._backend, self._backend.to_str())
        encoder.encode_special_tokens = True
        for (left, right), placeholder in self._placeholders.items():
            encoder.add_tokens([AddedToken(placeholder, special=False, normalized=False, lstrip=left, rstrip=right)])
        return encoder, frozenset(encoder.token_to_id(text) for text in self._placeholders.values())

    def _decode_by_library(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        if skip_special:  # more than the library knows as such
            ids = [i for i in ids if i not in self._special_ids]
        with self._lock:
            text: str = self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        return text


def _strips(added: Any) -> tuple[bool, bool]:
    """Whether it takes the spaces on its left, and those on its right."""
    return bool(added.lstrip), bool(added.rstrip)


def _encoding(backend: Any, text: str, *, add_special_tokens: bool) -> Any:
    """`encode` holds the GIL until it is done, a second for a megabyte; encoding a batch releases it."""
    if len(text) <= LONG_CHARS:
        return backend.encode(text, add_special_tokens=add_special_tokens)
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]


def _copy(backend: Any, source: str) -> Any:
    """`source` is its JSON form, which takes tens of milliseconds to write."""
    copy = type(backend).from_str(source)
    copy.no_truncation()
    copy.no_padding()
    return copy


def _template_source(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None
