"""A vocabulary without a file: the 256 bytes and a handful of special tokens. The fake engine uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.core.prompt import Prompt, apart
from drivetrain.core.tokenizer import Detokenizer
from drivetrain.text.detokenizers import TableDetokenizer

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>")

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ByteTokenizer:
    """Id b is the byte b; ids from 256 on are the special tokens. A subclass may have others."""

    specials: tuple[str, ...] = SPECIALS
    waits = False
    vocab_size = 256 + len(SPECIALS)
    longest_piece = max(map(len, SPECIALS))
    bos_token: str | None = "<s>"
    eos_token: str | None = "</s>"
    pad_token: str | None = None
    chat_template: str | None = _CHATML
    response_template: Mapping[str, Any] | None = None
    special_strings = frozenset(SPECIALS)

    def encode(self, prompt: Prompt) -> list[int]:
        ids = [256] if prompt.add_bos else []
        for text, special in apart(prompt, self.special_strings):
            ids += [256 + self.specials.index(text)] if special else text.encode()
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        spell = self._bytes_in_text if skip_special else self.token_bytes
        return b"".join(map(spell, ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes((token_id,))
        return self.specials[token_id - 256].encode() if token_id < self.vocab_size else b""

    def id_of(self, token: str) -> int | None:
        if token in self.specials:
            return 256 + self.specials.index(token)
        data = token.encode()
        return data[0] if len(data) == 1 else None

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        return TableDetokenizer(self._bytes_in_text, strip_first=False)

    def _bytes_in_text(self, token_id: int) -> bytes:
        return bytes((token_id,)) if token_id < 256 else b""
