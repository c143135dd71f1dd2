"""The tokenizer port over an upstream: it splits texts there, and knows the spellings of ids seen so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drivetrain.core.errors import Unsupported
from drivetrain.core.prompt import Prompt
from drivetrain.core.tokenizer import LONGEST_PIECE, Detokenizer
from drivetrain.engines.remote.dialects.base import Splitter, UpstreamFacts
from drivetrain.text.detokenizers import TableDetokenizer

NEUTRAL_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
"""For upstreams that render chats themselves and show no template. What it makes is never sent."""


class NoSplitter:
    """For an upstream that only knows texts."""

    def encode(self, prompt: Prompt) -> list[int]:
        raise Unsupported("this upstream gives no token ids", param="prompt")

    def decode(self, ids: Sequence[int]) -> str:
        raise Unsupported("this upstream takes no token ids", param="tokens")


class RemoteTokenizer:
    """`encode` and `decode` block for a round trip. The text of an answer comes in the pieces of each step."""

    def __init__(self, facts: UpstreamFacts, splitter: Splitter) -> None:
        self._facts = facts
        self._splitter = splitter
        self._specials: Mapping[str, int] = facts.specials
        self._special_ids = frozenset(facts.specials.values())
        self._learnt: dict[int, bytes] = {i: text.encode() for text, i in facts.specials.items()}

    def learn(self, token_id: int, spelling: bytes) -> None:
        if token_id < self._facts.vocab_size:
            self._learnt.setdefault(token_id, spelling)

    @property
    def waits(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    @property
    def longest_piece(self) -> int:
        return LONGEST_PIECE

    @property
    def bos_token(self) -> str | None:
        return self._facts.bos_token

    @property
    def eos_token(self) -> str | None:
        return self._facts.eos_token

    @property
    def pad_token(self) -> str | None:
        return None

    @property
    def chat_template(self) -> str | None:
        return self._facts.chat_template or NEUTRAL_TEMPLATE

    @property
    def response_template(self) -> None:
        return None

    @property
    def special_strings(self) -> frozenset[str]:
        return frozenset(self._specials)

    def encode(self, prompt: Prompt) -> list[int]:
        return self._splitter.encode(prompt)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        shown = [i for i in ids if i not in self._special_ids] if skip_special else list(ids)
        return self._splitter.decode(shown) if shown else ""

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._learnt.get(token_id, b"")

    def id_of(self, token: str) -> int | None:
        return self._specials.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        return TableDetokenizer(self._in_text, strip_first=False)

    def _in_text(self, token_id: int) -> bytes:
        return b"" if token_id in self._special_ids else self.token_bytes(token_id)
