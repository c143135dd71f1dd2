"""The tokenizer port: text to ids and ids to bytes, whichever library knows the vocabulary.

A thread that works on a text cannot be stopped from outside: it has to check whether anyone is still waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, Self

from drivetrain.core.errors import Cancelled
from drivetrain.core.prompt import Prompt

LONGEST_PIECE = 1024
"""For a vocabulary that does not say. No known one has longer pieces."""


class Detokenizer(Protocol):
    """Turns the ids of one choice into bytes, one at a time. Keeps the context that the next id needs."""

    def push(self, token_id: int) -> bytes:
        """The bytes that this id adds to the text; empty for a special token."""
        ...


class Tokenizer(Protocol):
    """Read-only after loading, so one instance serves all requests from any thread."""

    @property
    def waits(self) -> bool:
        """Whether `encode` may wait: for another process, or for another thread that uses the same library."""
        ...

    @property
    def vocab_size(self) -> int:
        """All ids are below this, added tokens included."""
        ...

    @property
    def longest_piece(self) -> int:
        """The most characters that one id stands for; tells without `encode` that a text is far too long."""
        ...

    @property
    def bos_token(self) -> str | None: ...

    @property
    def eos_token(self) -> str | None: ...

    @property
    def pad_token(self) -> str | None:
        """None also where it is not known."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja source that came with the weights: untrusted."""
        ...

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """How to read the model's answers, as its authors wrote it down: untrusted."""
        ...

    @property
    def special_strings(self) -> frozenset[str]:
        """Texts that encode to a special token, except in a literal segment."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt as ids. It is encoded as a whole, in time that depends on its length only; a special token whose
        spelling touches a literal segment is plain text.

        Raises `Cancelled` soon after nobody waits for it any more (see `check_wanted`).
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence. Bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_text(self, token_id: int) -> str:
        """How to show one id to a person: its text, or a special token's name."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id in the middle of a text; of a special token, its name."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token by its exact spelling in the vocabulary."""
        ...

    def is_special(self, token_id: int) -> bool: ...

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        """A new one for the text that follows `prefix`, which is empty if no prompt comes before the text.

        Many vocabularies drop the space before the first word of a text, and only there.
        """
        ...


class Wanted:
    """The waiting side enters it for as long as it waits; the thread does its work inside `here`, in any order."""

    def __init__(self) -> None:
        self.over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True

    @contextmanager
    def here(self) -> Iterator[None]:
        """Work done inside is for the waiting side: `check_wanted` raises in it once nobody waits."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


_current: ContextVar[Wanted] = ContextVar("wanted")
_ALWAYS = Wanted()


def check_wanted() -> None:
    """Raises `Cancelled` once nobody waits for this thread's work any more. Call it between the steps of long work."""
    if _current.get(_ALWAYS).over:
        raise Cancelled("no one is waiting for this any more")
