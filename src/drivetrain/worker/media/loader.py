"""Loads a request's images, from data URIs, allowed hosts, Python callers' paths or bytes. Headers before pixels."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import io
import os
import re
import stat
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from drivetrain.core.capabilities import Limits
from drivetrain.core.errors import InvalidRequest, NotReady, no_file_left
from drivetrain.core.messages import ImagePart
from drivetrain.worker.media.fetch import Fetcher
from drivetrain.worker.media.pictures import Pictures, PixelRoom

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_UNENCODED_CHARS = 3_000_000

_TYPES = ("image/", "application/octet-stream")
_PADDING = {"%2b": "+", "%2f": "/", "%3d": "=", "%0a": "", "%0d": "", "%20": ""}
"""Everything in base64 that may be percent-encoded."""


T = TypeVar("T")

FETCHES = 16
"""How many at once. They wait for other people's servers, so they have threads of their own."""

DECODED_AT_ONCE = 2
"""An image takes several times the memory of its pixels while it is decoded."""


class MediaLoader:
    """Fetches only from `allow_hosts`; none by default. Call `close` at the end."""

    def __init__(
        self,
        limits: Limits,
        *,
        room: PixelRoom,
        allow_hosts: frozenset[str] = frozenset(),
        fetcher: Fetcher | None = None,
    ) -> None:
        """`room` is shared by the images of all requests."""
        self._limits = limits
        self._room = room
        self._fetcher = fetcher or Fetcher(allow_hosts, max_bytes=limits.max_image_bytes)
        self._fetching = ThreadPoolExecutor(FETCHES, thread_name_prefix="drivetrain-fetch")
        self._decoding = ThreadPoolExecutor(DECODED_AT_ONCE, thread_name_prefix="drivetrain-decode")

    def close(self) -> None:
        """Does not wait for fetches and decoding in progress."""
        for threads in (self._fetching, self._decoding):
            threads.shutdown(wait=False, cancel_futures=True)

    async def load(self, parts: Sequence[tuple[ImagePart, str]], *, hashes: bool = False) -> Pictures:
        """Pillow images in RGB, with the `hashes` of their files if wanted.

        Each part comes with its place, for the param of an `InvalidRequest`. All headers are checked before any image
        is decoded; decoding waits until there is room for the pixels.
        """
        files: deque[tuple[bytes, str]] = deque()
        pixels = 0
        for part, where in parts:
            data, size = await self._file(part, where)
            files.append((data, where))
            pixels += size
            if pixels > self._limits.max_request_pixels:
                raise _refused(
                    f"with this image the request has {pixels:,} pixels; "
                    f"the limit is {self._limits.max_request_pixels:,}; send fewer or smaller images",
                    where,
                )
        pictures = await self._room.take(pixels)
        try:
            if hashes:
                pictures.hashes += await self._on_thread(self._decoding, _hashes, [data for data, _ in files])
            while files:
                pictures.add(await self._on_thread(self._decoding, decode, *files.popleft()))
        except BaseException:
            pictures.let_go()
            raise
        return pictures

    async def _file(self, part: ImagePart, where: str) -> tuple[bytes, int]:
        """The encoded image and its number of pixels."""
        if part.data is None and part.path is None and _scheme(part.url).startswith(("http://", "https://")):
            data = await self._on_thread(self._fetching, self._fetcher.fetch, part.url or "", where)
            return await self._on_thread(self._decoding, self._judged, data, where)
        return await self._on_thread(self._decoding, lambda: self._judged(self._bytes(part, where), where))

    async def _on_thread(self, threads: Executor, work: Callable[..., T], *args: object) -> T:
        try:
            job = asyncio.get_running_loop().run_in_executor(threads, partial(work, *args))
        except RuntimeError as exc:  # the threads are gone
            raise NotReady("the worker is stopped") from exc
        return await job

    def _judged(self, data: bytes, where: str) -> tuple[bytes, int]:
        if len(data) > self._limits.max_image_bytes:
            raise self._too_long(where)
        if not data:
            raise _refused("the image is empty", where)
        limit = self._limits.max_image_pixels
        with _opened(data, where) as image:
            width, height = image.size
        if width * height > limit:
            raise _refused(f"the image has {width} x {height} pixels; the limit is {limit}", where)
        return data, width * height

    def _bytes(self, part: ImagePart, where: str) -> bytes:
        if part.data is not None:
            return part.data
        if part.path is not None:
            return self._read(part.path, where)
        url = part.url or ""
        if _scheme(url).startswith("data:"):
            return self._data_uri(url, where)
        raise _refused("an image must be a data URI, or an http(s) URL of an allowed host", where)

    def _read(self, path: str, where: str) -> bytes:
        name = os.path.basename(path)[:100]
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would keep us waiting
                raise _refused(f"the image {name} is not a file", where)
            with open(path, "rb") as file:
                return file.read(self._limits.max_image_bytes + 1)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "not a path"
            raise no_file_left(exc) or _refused(f"the image {name} cannot be read: {why}", where) from exc

    def _data_uri(self, url: str, where: str) -> bytes:
        comma = url.find(",", 0, 256)
        kind, *options = url[len("data:") : comma].lower().split(";")
        if comma < 0 or not (kind.strip() or _TYPES[0]).startswith(_TYPES):
            raise _refused("the data URI is not an image; write data:image/png;base64,…", where)
        is_base64 = bool(options) and options[-1].strip() == "base64"
        if len(url) > self._limits.max_image_bytes * 2 + 1024:
            raise self._too_long(where)
        body = url[comma + 1 :]
        if not is_base64:
            if len(body) > MAX_UNENCODED_CHARS:
                raise _refused("a data URI this long must be in base64", where)
            return urllib.parse.unquote_to_bytes(body)
        try:
            bare = re.sub(r"%(2[bBfF0]|3[dD]|0[aAdD])", lambda found: _PADDING[found[0].lower()], body)
            bare = re.sub(r"\s+", "", bare)
            return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise _refused("the data URI is not valid base64", where) from exc

    def _too_long(self, where: str) -> InvalidRequest:
        return _refused(f"the image has more than {self._limits.max_image_bytes} bytes", where)


def _hashes(files: Sequence[bytes]) -> list[str]:
    return [hashlib.sha256(data).hexdigest() for data in files]


def _scheme(url: str | None) -> str:
    return (url or "")[:8].lower()


def decode(data: bytes, where: str) -> Any:
    """The first frame, upright, transparency on white. Its size was checked before."""
    from PIL import ImageOps

    with _opened(data, where) as image:
        image.load()
        return _flattened(ImageOps.exif_transpose(image))


@contextmanager
def _opened(data: bytes, where: str) -> Iterator[Any]:
    """The image, read as far as its header. Errors while it is open are typed."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise _refused("the image has too many pixels", where) from exc
    except Exception as exc:
        raise _refused(f"the image cannot be decoded; send a whole {', '.join(FORMATS)}", where) from exc


def _flattened(image: Any) -> Any:
    """Keeps as few copies of the pixels as possible: an image may be hundreds of megabytes."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        ground = Image.new("RGB", image.size, (255, 255, 255))
        ground.paste(image, mask=image.getchannel("A"))
        return ground
    return image if image.mode == "RGB" else image.convert("RGB")


def _refused(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {message}", param=where)
