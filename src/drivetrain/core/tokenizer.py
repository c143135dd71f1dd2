"""The tokenizer port: text to ids and ids to bytes, whatever library knows the vocabulary; and for how long.

A thread that works on a text cannot be stopped from outside: it has to look whether anybody still waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, Self

from drivetrain.core.errors import Cancelled
from drivetrain.core.prompt import Prompt

LONGEST_PIECE = 1024
"""Of a vocabulary that does not tell its own. None has longer pieces."""


class Detokenizer(Protocol):
    """Turns the ids of one choice into bytes, one id at a time. Holds the context that the next id needs."""

    def push(self, token_id: int) -> bytes:
        """The bytes that this id adds to the text; empty for a special token."""
        ...


class Tokenizer(Protocol):
    """Read-only after loading, so one instance serves all requests from any thread."""

    @property
    def waits(self) -> bool:
        """Whether `encode` waits for somebody: another process, or another thread's turn with the same library."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids are below this, added tokens included."""
        ...

    @property
    def longest_piece(self) -> int:
        """No id stands for more characters of a text: what is too long by far is known without `encode`."""
        ...

    @property
    def bos_token(self) -> str | None: ...

    @property
    def eos_token(self) -> str | None: ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja source that came with the weights: untrusted."""
        ...

    @property
    def special_strings(self) -> frozenset[str]:
        """Texts that encode to a special token unless they stand in a literal segment."""
        ...

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt as ids, in a time that grows with its length whatever it says: encoded whole, but a special token
        that is spelled in a literal segment, if only in part, is plain text.

        Raises `Cancelled` soon after nobody waits for it any more (see `check_wanted`).
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence. Bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_text(self, token_id: int) -> str:
        """How to show one id to a person: its own text, a special token's name included."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id in the middle of a text, a special token's name included."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token by its exact spelling in the vocabulary."""
        ...

    def is_special(self, token_id: int) -> bool: ...

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        """A fresh one for the text that follows `prefix`, which is empty where no prompt stands before the text.

        Many vocabularies drop the space before the first word of a text, and only there.
        """
        ...


class Wanted:
    """Entered by who waits, for as long as that is. `here` is for the thread, and may come before or after."""

    def __init__(self) -> None:
        self.over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True

    @contextmanager
    def here(self) -> Iterator[None]:
        """What is done meanwhile is for who waits."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)


_current: ContextVar[Wanted] = ContextVar("wanted")
_ALWAYS = Wanted()


def check_wanted() -> None:
    """Raises `Cancelled` on a thread that nobody waits for any more. For long work, between its steps."""
    if _current.get(_ALWAYS).over:
        raise Cancelled("no one is waiting for this any more")
