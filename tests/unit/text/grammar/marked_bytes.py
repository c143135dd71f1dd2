"""A vocabulary of bytes in which the markers of a form are special tokens, as in the models that speak it."""

from __future__ import annotations

import re

from drivetrain.core.tokenizer import Detokenizer
from drivetrain.text.answers import FORMS
from drivetrain.text.byte_tokenizer import ByteTokenizer
from drivetrain.text.detokenizers import TableDetokenizer

_MARKER = re.compile(r"""｜DSML｜|<[|/｜]?[\w▁]+[|｜]?>|<\|"\|>|\[/?[A-Z_]+\]""")
_PLAIN = {"qwen-xml": ("<function=", "</function>", "</parameter>")}


def markers_of(form: str) -> tuple[str, ...]:
    row = FORMS[form]
    writing = row.writing
    assert writing is not None
    texts = [*(row.reasoning or ()), writing.opens, writing.call, writing.ends, writing.closes, writing.content]
    texts += [*(writing.remark or ()), *row.silent]
    if form == "glm":
        texts += ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
    if form == "gemma4":
        texts += ['<|"|>', "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"]
    found = {marker for text in texts for marker in _MARKER.findall(text)} - set(_PLAIN.get(form, ()))
    return tuple(sorted(found))


class MarkedBytes(ByteTokenizer):
    def __init__(self, form: str) -> None:
        self.markers = (*markers_of(form), "<end>")
        self.special_strings = frozenset(self.markers)
        self.vocab_size = 256 + len(self.markers)
        self.end = self.vocab_size - 1
        self.eos_token = "<end>"
        self.bos_token = None

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,)) if token_id < 256 else self.markers[token_id - 256].encode()

    def id_of(self, token: str) -> int | None:
        return 256 + self.markers.index(token) if token in self.markers else None

    def ids(self, text: str) -> list[int]:
        """Of a text in which all markers are special tokens."""
        split = re.split(f"({'|'.join(map(re.escape, sorted(self.markers, key=len, reverse=True)))})", text)
        return [
            i for part in split for i in ([256 + self.markers.index(part)] if part in self.markers else part.encode())
        ]

    def detokenizer(self, prefix: object = ()) -> Detokenizer:
        return TableDetokenizer(lambda token_id: bytes((token_id,)) if token_id < 256 else b"", strip_first=False)
