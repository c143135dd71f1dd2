"""The tokenizer port over llama.cpp: its server splits text into ids, the GGUF vocabulary spells ids."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from drivetrain.core.prompt import Prompt
from drivetrain.core.tokenizer import Detokenizer
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.answer import Answer
from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.engines.llamacpp.host import SPLITS
from drivetrain.engines.llamacpp.vocabulary import Vocabulary
from drivetrain.text.detokenizers import TableDetokenizer
from drivetrain.text.spans import find_specials

TIMEOUT_S = 60.0
_FENCE = "\n"


class Split(Protocol):
    """Text to ids, special-token spellings as such only with `specials`. Blocks; safe from any thread."""

    def __call__(self, text: str, *, specials: bool, add_special: bool = False) -> list[int]: ...


class ServerSplit:
    """Asks the server's `/tokenize`, on a connection of its own each time: one that is kept open wakes the server a
    hundred times a second, and a new one costs no more than the question.

    There are `SPLITS` of them at the most; further callers wait for their turn.
    """

    def __init__(self, host: str, port: int, key: str) -> None:
        self._address = (host, port)
        self._head = (
            f"POST /tokenize HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {key}\r\n"
            "Connection: close\r\nContent-Type: application/json\r\nContent-Length: "
        )
        self._free = threading.BoundedSemaphore(SPLITS)

    def __call__(self, text: str, *, specials: bool, add_special: bool = False) -> list[int]:
        if not text and not add_special:
            return []
        body = json.dumps({"content": text, "add_special": add_special, "parse_special": specials})
        request = f"{self._head}{len(body)}\r\n\r\n{body}".encode()
        try:
            with self._free:
                answer = self._ask(request)
            return [int(i) for i in json.loads(answer)["tokens"]]
        except Exception as exc:
            raise errors.while_running(exc) from exc

    def _ask(self, request: bytes) -> bytes:
        answer, parts = Answer(), list[bytes]()
        with socket.create_connection(self._address, TIMEOUT_S) as connection:
            connection.sendall(request)
            while not answer.over:
                data = connection.recv(2**16)
                if not data:
                    raise EOFError("the answer broke off")
                parts += answer.feed(data)
        if answer.status != 200:
            raise ServerRefused.parse(answer.status, b"".join(parts))
        return b"".join(parts)


class LlamaCppTokenizer:
    """`split` blocks for a round trip to the server; all else is looked up in memory."""

    def __init__(
        self, vocabulary: Vocabulary, split: Split, *, chat_template: str | None, image_token: str | None = None
    ) -> None:
        """`image_token` is treated as special where callers' words are concerned, though no id need stand for it."""
        self._vocabulary = vocabulary
        self._split = split
        self._chat_template = chat_template
        self._image_token = image_token

    @property
    def waits(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    @property
    def bos_token(self) -> str | None:
        return self._spelling(self._vocabulary.bos_id)

    @property
    def eos_token(self) -> str | None:
        return self._spelling(self._vocabulary.eos_id)

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @cached_property
    def special_strings(self) -> frozenset[str]:
        return self._vocabulary.special_strings | ({self._image_token} if self._image_token else set())

    def encode(self, prompt: Prompt) -> list[int]:
        ids: list[int] = []
        for i, (text, specials) in enumerate(self._parts(prompt)):
            ids += self._split(text, specials=specials) if i == 0 else self._split_inside(text, specials=specials)
        if prompt.add_bos and ids[: len(self.server_bos)] != self.server_bos:
            return self.server_bos + ids
        return ids

    def split_whole(self, text: str) -> list[int]:
        """All special tokens count and nothing is added, as the server does with the texts around images."""
        return self._split(text, specials=True)

    @cached_property
    def image_place(self) -> int:
        """The id that is shown where an image is: that of the image token, if one there is."""
        if self._image_token is None:
            return 0
        ids = self._split(self._image_token, specials=True)
        return ids[len(ids) // 2] if all(map(self.is_special, ids)) else self._vocabulary.unknown_id or 0

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        spell = self._vocabulary.bytes_in_text if skip_special else self.token_bytes
        detokenizer = TableDetokenizer(spell, strip_first=self._vocabulary.adds_space)
        return b"".join(map(detokenizer.push, ids)).decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._vocabulary.special_ids:
            return self._vocabulary.spellings[token_id].encode()
        return self._vocabulary.bytes_in_text(token_id)

    def id_of(self, token: str) -> int | None:
        return self._vocabulary.ids.get(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._vocabulary.special_ids

    def detokenizer(self, prefix: Sequence[int] = ()) -> Detokenizer:
        at_start = all(i in self._vocabulary.special_ids for i in reversed(prefix))
        return TableDetokenizer(self._vocabulary.bytes_in_text, strip_first=self._vocabulary.adds_space and at_start)

    def _parts(self, prompt: Prompt) -> list[tuple[str, bool]]:
        """The text in order, cut where a caller's words spell a special token, even only in part."""
        text, literal = prompt.text, literal_spans(prompt)
        parts: list[tuple[str, bool]] = []
        at = 0
        for start, end in find_specials(text, self._vocabulary.special_strings) if literal else ():
            if any(start < stop and begin < end for begin, stop in literal):
                parts += [(text[at:start], True), (text[start:end], False)]
                at = end
        parts.append((text[at:], True))
        return [part for part in parts if part[0]]

    def _split_inside(self, text: str, *, specials: bool) -> list[int]:
        """Not at the start of a text: a vocabulary that would put a space in front is shown a line break there."""
        if not self._vocabulary.adds_space:
            return self._split(text, specials=specials)
        ids = self._split(_FENCE + text, specials=specials)
        if ids[: len(self._fence)] == self._fence:
            return ids[len(self._fence) :]
        return self._split(text, specials=specials)

    @cached_property
    def server_bos(self) -> list[int]:
        """What the server begins a text with, by example."""
        plain = self._split("a", specials=False)
        framed = self._split("a", specials=False, add_special=True)
        return framed[: len(framed) - len(plain)] if framed[-len(plain) :] == plain else framed[:1]

    @cached_property
    def _fence(self) -> list[int]:
        return self._split(_FENCE, specials=False)

    def _spelling(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._vocabulary.spellings[token_id]


def literal_spans(prompt: Prompt) -> list[tuple[int, int]]:
    """Where the text is the caller's words."""
    spans: list[tuple[int, int]] = []
    at = 0
    for segment in prompt.segments:
        if segment.literal:
            spans.append((at, at + len(segment.text)))
        at += len(segment.text)
    return spans
