"""The tokenizer port over llama.cpp: its server splits text into ids, the GGUF vocabulary spells ids."""

from __future__ import annotations

import json
import socket
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from drivetrain.core.errors import Cancelled
from drivetrain.core.prompt import Prompt, apart, find_specials, own_specials
from drivetrain.core.tokenizer import Detokenizer, check_wanted
from drivetrain.engines.base.frame import frame
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.child.host import SPLITS
from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.engines.llamacpp.vocabulary import Vocabulary
from drivetrain.http.address import Address
from drivetrain.http.blocking import exchange
from drivetrain.http.parser import spelled
from drivetrain.http.spare import SpareSockets
from drivetrain.text.detokenizers import TableDetokenizer

TIMEOUT_S = 60.0

LOOK_S = 0.05
"""How often who waits for the server looks whether it is still wanted."""

MAX_ANSWER_BYTES = 2**30

SPECIALS_A_TEXT = 32
SPACES = " \t\n\v\f\r"


class Split(Protocol):
    """Texts to ids, special-token spellings as such only with `specials`. Blocks; safe from any thread.

    Several texts are split one by one, and whole numbers among them stay as they are.
    """

    def __call__(
        self, content: str | Sequence[str | int], *, specials: bool, add_special: bool = False
    ) -> list[int]: ...


class ServerSplit:
    """Asks the server's `/tokenize`, on a connection of its own each time: one that is kept open wakes the server a
    hundred times a second, and a new one costs no more than the question.

    There are `SPLITS` of them at the most; further callers wait for their turn. Who is not wanted any more leaves at
    once, and its turn stays taken until the server, which works on, has answered.
    """

    def __init__(self, host: str, port: int, key: str, sockets: SpareSockets | None = None) -> None:
        self._address = Address(False, host, port, "")
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._sockets = sockets or SpareSockets(0)
        self._free = threading.BoundedSemaphore(SPLITS)
        self._left: deque[socket.socket] = deque()
        weakref.finalize(self, _close_all, self._left)

    def __call__(self, content: str | Sequence[str | int], *, specials: bool, add_special: bool = False) -> list[int]:
        if not content and not add_special:
            return []
        body = json.dumps({"content": content, "add_special": add_special, "parse_special": specials})
        request = spelled(self._address, "POST", "/tokenize", self._headers, body.encode())
        try:
            with self._turn() as connection:
                answer = exchange(
                    connection,
                    request,
                    "POST",
                    timeout_s=TIMEOUT_S,
                    limit=MAX_ANSWER_BYTES,
                    look_s=LOOK_S,
                    look=check_wanted,
                )
            if answer.status != 200:
                raise ServerRefused.parse(answer.status, answer.body)
            return [int(i) for i in json.loads(answer.body)["tokens"]]
        except Exception as exc:
            raise errors.while_running(exc) from exc

    @contextmanager
    def _turn(self) -> Iterator[socket.socket]:
        self._close_answered()
        while not self._free.acquire(timeout=LOOK_S):
            check_wanted()
            self._close_answered()
        connection: socket.socket | None = None
        try:
            connection = self._sockets.take()
            connection.settimeout(TIMEOUT_S)
            connection.connect((self._address.host, self._address.port))
            yield connection
        except Cancelled:
            assert connection is not None
            self._left.append(connection)
            raise
        except BaseException:
            self._end(connection)
            raise
        self._end(connection)

    def _close_answered(self) -> None:
        for _ in range(len(self._left)):
            try:
                connection = self._left.popleft()
            except IndexError:  # another thread was at it
                return
            if _has_answered(connection):
                self._end(connection)
            else:
                self._left.append(connection)

    def _end(self, connection: socket.socket | None) -> None:
        if connection is not None:
            connection.close()
            self._sockets.restock()
        self._free.release()


def _close_all(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _has_answered(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


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
        self._taking: dict[str, bool] = {}

    @property
    def waits(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    @property
    def longest_piece(self) -> int:
        return self._vocabulary.longest_piece

    @property
    def bos_token(self) -> str | None:
        return self._spelling(self._vocabulary.bos_id)

    @property
    def eos_token(self) -> str | None:
        return self._spelling(self._vocabulary.eos_id)

    @property
    def pad_token(self) -> str | None:
        return None

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @property
    def response_template(self) -> None:
        return None

    @cached_property
    def special_strings(self) -> frozenset[str]:
        return self._vocabulary.special_strings | ({self._image_token} if self._image_token else set())

    def encode(self, prompt: Prompt) -> list[int]:
        """In one question, and mostly as the server does it. It takes a name for a token whoever has written it, so
        where that finds others than our own, they are named by their ids and all between them is plain text."""
        check_wanted()
        text, own = prompt.text, own_specials(prompt, self._vocabulary.special_strings)
        ids: list[int] | None = None
        if own == find_specials(text, self._vocabulary.special_strings):
            ids = self._split(_stretches(text, [start for start, _ in own]), specials=True)
            if any(segment.literal for segment in prompt.segments):
                expected = [self._vocabulary.ids[text[start:end]] for start, end in own]
                ids = ids if self._spelled(ids) == self._spelled(expected) else None
        ids = self._encode_apart(prompt) if ids is None else ids
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

    def _encode_apart(self, prompt: Prompt) -> list[int]:
        parts = apart(prompt, self._vocabulary.special_strings)
        content: list[str | int] = []
        for (text, special), (before, _) in zip(parts, [("", False), *parts], strict=False):
            if special:
                content.append(-1 - self._vocabulary.ids[text])  # below 0, so that it is not mistaken for one found
            elif text := text.lstrip(SPACES) if self._takes_spaces(before) else text:
                content.append(text)
        ids: list[int] = []
        for token_id in self._split(content, specials=False):
            if token_id < 0:
                ids.append(-1 - token_id)
            elif self._spelled((token_id,)):
                ids += self._in_pieces(token_id)
            else:
                ids.append(token_id)
        return ids

    def _spelled(self, ids: Iterable[int]) -> list[int]:
        """The special ones among them; not the unknown token, which stands for any character that has none."""
        specials = self._vocabulary.special_ids
        return [i for i in ids if i in specials and i != self._vocabulary.unknown_id]

    def _takes_spaces(self, special: str) -> bool:
        """Whether the spaces behind a special token go with it, by example."""
        if special not in self._vocabulary.special_strings:
            return False
        if special not in self._taking:
            self._taking[special] = len(self._split(special + "\n", specials=True)) == 1
        return self._taking[special]

    def _in_pieces(self, token_id: int) -> list[int]:
        """Some vocabularies put a special token together even from plain text: then character by character."""
        known = self._vocabulary.ids_by_bytes
        ids: list[int] = []
        for char in self._vocabulary.spellings[token_id]:
            whole = known.get(char.encode())
            ids += [known[bytes((byte,))] for byte in char.encode()] if whole is None else [whole]
        return ids

    @cached_property
    def server_bos(self) -> list[int]:
        """What the server begins a text with, by example."""
        return frame(self._split("a", specials=False), self._split("a", specials=False, add_special=True))

    def _spelling(self, token_id: int | None) -> str | None:
        return None if token_id is None else self._vocabulary.spellings[token_id]


def _stretches(text: str, starts: Sequence[int]) -> list[str]:
    """Cut in front of some of its special tokens. The server's time for one text grows by the square of their number;
    what stands between two of them is split on its own in any case."""
    cuts = [0, *starts[SPECIALS_A_TEXT::SPECIALS_A_TEXT], len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]
