"""What a grammar does to the libraries that will compile it: made, copied, and followed for a while.

Runs in the process of trials only: what happens here may take its life.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from drivetrain.text.grammar.library import NOTHING, ByteMatcher, byte_ids, byte_matcher, explained

MAX_STEPS = 64
"""Bytes of an answer."""

MAX_ENGINE_CPU_S = 0.5
MAX_ENGINE_BYTES = 128 * 2**20
"""For an engine with a library of its own, which compiles again for each choice of each request, while others wait."""

TOO_LARGE_THERE = (
    f"it takes the engine more than {MAX_ENGINE_CPU_S:g} s or {MAX_ENGINE_BYTES // 2**20} MiB to compile; "
    "make it smaller"
)


class Rehearsed(NamedTuple):
    """`fault` is empty if nothing is wrong. `held_bytes` is what our library needs for it."""

    fault: str
    held_bytes: int


def rehearse(lark: str, engine: EngineLibrary | None = None) -> Rehearsed:
    """Compile it over a vocabulary of single bytes, and in the engine's own library, if it has one.

    The beginning that it forces is followed, and then a way through it: the many optional properties of an object come
    behind its brace.
    """
    before = resident_bytes()
    first = byte_matcher(lark)
    fault, taken = _walk(first)
    held_bytes = max(0, resident_bytes() - before)
    if not fault and engine is not None:
        fault = engine.fault_of(lark, taken)
    return Rehearsed(fault, held_bytes)


def _walk(first: ByteMatcher) -> tuple[str, list[int]]:
    """What is wrong, and the bytes that were taken: the same each time."""
    matcher, chance = first.deep_copy(), random.Random(0)  # noqa: S311 - the same way each time
    taken: list[int] = []
    for step in range(MAX_STEPS):
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            return explained(matcher.get_error()), taken
        if step == 0 and not any(mask):
            return NOTHING, taken
        ids = byte_ids(mask)
        if not ids or matcher.is_stopped():
            return "", taken
        ids = matcher.compute_ff_tokens() or [chance.choice(ids)]
        if not matcher.consume_tokens(ids):
            return explained(matcher.get_error()), taken
        taken += ids
    return "", taken


class _Vocabulary(ctypes.Structure):
    _fields_ = (
        ("vocab_size", ctypes.c_uint32),
        ("tok_eos", ctypes.c_uint32),
        ("token_lens", ctypes.POINTER(ctypes.c_uint32)),
        ("token_bytes", ctypes.c_char_p),
        ("tokenizer_json", ctypes.c_char_p),
        ("tokenize_assumes_string", ctypes.c_bool),
        ("tokenize_fn", ctypes.c_void_p),
        ("use_approximate_greedy_tokenize_fn", ctypes.c_bool),
        ("tokenize_user_data", ctypes.c_void_p),
        ("slices", ctypes.c_void_p),
    )


_POINTER = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "new_tokenizer": (_POINTER, ctypes.POINTER(_Vocabulary), ctypes.c_char_p, ctypes.c_size_t),
    "constraint_init_set_defaults": (None, ctypes.c_char_p, _POINTER),
    "new_matcher": (_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
    "clone_matcher": (_POINTER, _POINTER),
    "free_matcher": (None, _POINTER),
    "matcher_compute_mask": (ctypes.c_int32, _POINTER),
    "matcher_validate_tokens": (ctypes.c_int32, _POINTER, ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t),
    "matcher_consume_token": (ctypes.c_int32, _POINTER, ctypes.c_uint32),
    "matcher_get_error": (ctypes.c_char_p, _POINTER),
}
"""Of llguidance's C interface: what each returns and takes."""

_SETTINGS_BYTES = 512
"""More than its settings of a grammar take in any version."""


class EngineLibrary:
    """The llguidance that is built into an engine, another version than ours: what is cheap in one may not be in it.

    Raises `OSError` or `AttributeError` for a file without its C interface.
    """

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self._calls: dict[str, Any] = {}
        for name, (returns, *takes) in _FUNCTIONS.items():
            call = getattr(loaded, f"llg_{name}")
            call.restype, call.argtypes = returns, takes
            self._calls[name] = call
        lengths = (ctypes.c_uint32 * 257)(*[1] * 256, 4)
        vocabulary = _Vocabulary(
            vocab_size=257,
            tok_eos=256,
            token_lens=lengths,
            token_bytes=bytes(range(256)) + b"\xff[e]",
            use_approximate_greedy_tokenize_fn=True,
        )
        said = ctypes.create_string_buffer(200)
        tokenizer = self._calls["new_tokenizer"](ctypes.byref(vocabulary), said, len(said))
        if not tokenizer:
            raise OSError(said.value.decode(errors="replace"))
        self._settings = ctypes.create_string_buffer(_SETTINGS_BYTES)
        self._calls["constraint_init_set_defaults"](self._settings, tokenizer)
        if self.fault_of('start: "ab"', [*b"ab"]) or not self.fault_of("start: ab", []):
            raise OSError("it cannot tell a grammar from none")

    def fault_of(self, lark: str, ids: list[int]) -> str:
        """As the engine would: each choice has a copy, and a mask for each token."""
        began, held_bytes = time.process_time(), resident_bytes()
        with self._matcher(lark) as matcher:
            fault = self._follow(matcher, ids[:MAX_STEPS])
            too_long = time.process_time() - began > MAX_ENGINE_CPU_S
            too_large = resident_bytes() - held_bytes > MAX_ENGINE_BYTES
        return fault or (TOO_LARGE_THERE if too_long or too_large else "")

    def _follow(self, matcher: Any, ids: list[int]) -> str:
        """Up to what this version does not allow, if it differs."""
        self._calls["matcher_compute_mask"](matcher)
        for token in ids:
            if self._calls["matcher_validate_tokens"](matcher, ctypes.byref(ctypes.c_uint32(token)), 1) < 1:
                break
            self._calls["matcher_consume_token"](matcher, token)
            self._calls["matcher_compute_mask"](matcher)
        error: bytes | None = self._calls["matcher_get_error"](matcher)
        return explained(error.decode(errors="replace")) if error else ""

    @contextmanager
    def _matcher(self, lark: str) -> Iterator[Any]:
        first = self._calls["new_matcher"](self._settings, b"lark", lark.encode())
        copy = self._calls["clone_matcher"](first)
        try:
            yield copy
        finally:
            self._calls["free_matcher"](copy)
            self._calls["free_matcher"](first)


def resident_bytes() -> int:
    """Of this process; nothing where it cannot be known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
