"""A prompt with images as llama.cpp takes it: one text with a marker for each image, and the images as PNG files.

It splits that text into ids itself, special tokens included; so what a caller wrote must not spell one.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import Media
from drivetrain.core.errors import ContextOverflow, DrivetrainError, InvalidRequest
from drivetrain.core.prompt import forged
from drivetrain.engines.base.error_text import clean
from drivetrain.engines.base.room import overflow
from drivetrain.engines.llamacpp import errors
from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.engines.llamacpp.tokenizer import LlamaCppTokenizer

WEIGHT = 256
"""How many tokens an image counts as when a slot is sought that has it already: looking at one takes long."""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """`texts` are the ids around the images, `bos` those in front of all; `tail` is the last part of `text`."""

    text: str
    tail: str
    files: tuple[str, ...]
    bos: tuple[int, ...]
    texts: tuple[tuple[int, ...], ...]
    digests: tuple[int, ...]
    place: int

    @property
    def body(self) -> Mapping[str, Any]:
        return {"prompt_string": self.text, "multimodal_data": self.files}

    @property
    def key(self) -> tuple[int, ...]:
        """What a slot remembers it by: text as its ids, an image as a number below zero, again and again."""
        key = self.bos + self.texts[0]
        for digest, text in zip(self.digests, self.texts[1:], strict=True):
            key += (digest,) * WEIGHT + text
        return key

    def expanded(self, total: int) -> tuple[int, ...]:
        """All `total` ids. llama.cpp tells no more than how many; several images share their places evenly."""
        places = total - len(self.bos) - sum(map(len, self.texts))
        if places < len(self.digests):
            return (self.place,) * total
        each, more = divmod(places, len(self.digests))
        ids = self.bos + self.texts[0]
        for i, text in enumerate(self.texts[1:]):
            ids += (self.place,) * (each + (i < more)) + text
        return ids


class ImagePrompts:
    """Makes them. `marker` is a secret of this server, `token` what stands for an image in the prompts we get."""

    def __init__(self, tokenizer: LlamaCppTokenizer, *, marker: str, token: str) -> None:
        self.tokenizer = tokenizer
        self._marker = marker
        self._token = token

    def make(self, media: Media) -> ImagePrompt:
        """Blocks: for a thread. Raises `InvalidRequest` for what llama.cpp would misread."""
        self._refuse_forged(media)
        texts = media.prompt.text.split(self._token)
        if len(texts) - 1 != len(media.images):
            raise InvalidRequest(
                f"the prompt has a place for {len(texts) - 1} images and {len(media.images)} were sent;"
                f" write {self._token} once for each",
                param="images",
            )
        bos = self.tokenizer.server_bos
        if bos and self.tokenizer.bos_token:
            texts[0] = texts[0].removeprefix(self.tokenizer.bos_token)  # llama.cpp puts it there in any case
        split = [self.tokenizer.split_whole(text) for text in texts]
        if not split[-1]:
            raise InvalidRequest("a prompt must not end with an image; write some text after it", param="prompt")
        files = [_png(image) for image in media.images]
        return ImagePrompt(
            text=self._marker.join(texts),
            tail=texts[-1],
            files=tuple(base64.b64encode(file).decode("ascii") for file in files),
            bos=tuple(bos),
            texts=tuple(map(tuple, split)),
            digests=tuple(-1 - int.from_bytes(hashlib.sha256(file).digest()[:8]) for file in files),
            place=self.tokenizer.image_place,
        )

    def _refuse_forged(self, media: Media) -> None:
        if self._marker in media.prompt.text:
            raise InvalidRequest("the prompt spells this server's marker for images", param="messages")
        if spelled := forged(media.prompt, self.tokenizer.special_strings):
            raise InvalidRequest(
                f"a message beside images must not spell the model's own token {spelled}", param="messages"
            )


def refused(exc: ServerRefused) -> DrivetrainError:
    """An error of a request with images, before anything was sampled."""
    error = errors.while_running(exc)
    if isinstance(error, ContextOverflow):
        return overflow(exc.prompt_tokens, exc.limit, None)
    if isinstance(error, InvalidRequest):
        return InvalidRequest(f"llama.cpp cannot take these images: {clean(str(exc))}", param="images")
    return error


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG", compress_level=1)
    return file.getvalue()
