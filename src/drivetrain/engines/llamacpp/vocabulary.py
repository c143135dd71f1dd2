"""The vocabulary as the GGUF file states it: how each id is spelled, which ids are special, which end a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from drivetrain.core.errors import LoadFailed
from drivetrain.core.tokenizer import LONGEST_PIECE
from drivetrain.engines.llama_server.ends import ENDS
from drivetrain.engines.llamacpp.gguf import as_text
from drivetrain.text.infill import INFILL_NAMES
from drivetrain.text.pieces import byte_level_bytes

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

FILL_IN_ENDS = frozenset({
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
    "<reponame>", "<|file_sep|>",
})  # fmt: skip
"""llama.cpp ends at these too. They are not ends of an answer, and the engine reads on past them."""


class _Pieces(dict[int, bytes]):
    """Those that were asked for: one known is found without a call into Python."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, token_id: int) -> bytes:
        return self.setdefault(token_id, self._spell(token_id))


class Vocabulary:
    """Read-only. Bytes of ids are worked out when they are first asked for."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._kind = as_text(metadata.get("tokenizer.ggml.model")) or ""
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, bytes) for token in tokens[:1]):
            raise LoadFailed("the GGUF file holds no vocabulary, so nothing can be told of its tokens")
        self.spellings: list[str] = [token.decode("utf-8", "replace") for token in tokens]
        kinds = metadata.get("tokenizer.ggml.token_type")
        self._kinds: tuple[int, ...] = tuple(kinds) if kinds is not None else (1,) * len(tokens)
        if len(self._kinds) != len(tokens):
            raise LoadFailed("the GGUF file is damaged: its vocabulary and the types of its tokens differ in length")
        self.ids: dict[str, int] = {spelling: i for i, spelling in reversed(list(enumerate(self.spellings)))}
        infill = (self.ids[name] for name in INFILL_NAMES if name in self.ids)
        self.special_ids = (
            frozenset(i for i, kind in enumerate(self._kinds) if kind in (_UNKNOWN, _CONTROL))
            | {self.ids[end] for end in ENDS if end in self.ids}
            | {i for i in infill if self._kinds[i] == _USER_DEFINED}
        )
        self.bytes_in_text: Callable[[int], bytes] = _Pieces(self._spell_in_text).__getitem__
        """What an id adds to a text: nothing if it is special, or past the vocabulary."""

    @property
    def size(self) -> int:
        return len(self.spellings)

    @cached_property
    def longest_piece(self) -> int:
        """In characters. Other kinds may make one token of a whole word that they do not know, or drop characters."""
        return max(map(len, self.spellings)) if self._kind in {"gpt2", "llama"} else LONGEST_PIECE

    @property
    def adds_space(self) -> bool:
        """Whether a text gets a space in front when it is split, which its first piece then shows."""
        stated = self._metadata.get("tokenizer.ggml.add_space_prefix")
        return bool(stated) if stated is not None else self._kind in {"llama", "bert", "t5"}

    @cached_property
    def bos_id(self) -> int | None:
        return self._named("bos")

    @cached_property
    def eos_id(self) -> int | None:
        return self._named("eos")

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that the file names as an end, and those that are ends by their spelling."""
        named = (self._named(name) for name in ("eos", "eot", "eom"))
        return frozenset(i for i in named if i is not None) | {self.ids[end] for end in ENDS if end in self.ids}

    @cached_property
    def unknown_id(self) -> int | None:
        return self._named("unknown")

    @cached_property
    def server_ends(self) -> frozenset[int]:
        """Every id that llama.cpp itself ends at."""
        named = (self._named(name) for name in ("fim_pad", "fim_rep", "fim_sep"))
        spelled = {self.ids[end] for end in FILL_IN_ENDS if end in self.ids}
        return self.eos_ids | {i for i in named if i is not None} | spelled

    @cached_property
    def special_strings(self) -> frozenset[str]:
        spelled = (self.spellings[i] for i in self.special_ids)
        return frozenset(text for text in spelled if text.strip())

    @cached_property
    def ids_by_bytes(self) -> Mapping[bytes, int]:
        """The lowest id of each piece."""
        found: dict[bytes, int] = {}
        for token_id in range(self.size):
            if data := self.bytes_in_text(token_id):
                found.setdefault(data, token_id)
        return found

    def _spell_in_text(self, token_id: int) -> bytes:
        return self._spell(token_id) if 0 <= token_id < self.size and token_id not in self.special_ids else b""

    def _spell(self, token_id: int) -> bytes:
        text, kind = self.spellings[token_id], self._kinds[token_id]
        if self._kind == "gpt2":
            return byte_level_bytes(text) if kind == 1 else text.encode()
        if (kind == _BYTE or self._kind == "plamo2") and (match := _BYTE_PIECE.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self._kind == "rwkv":
            return text.encode().decode("unicode_escape").encode("latin-1", "replace")
        return text.replace("▁", " ").encode()

    def _named(self, name: str) -> int | None:
        token_id = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        return token_id if isinstance(token_id, int) and 0 <= token_id < self.size else None
