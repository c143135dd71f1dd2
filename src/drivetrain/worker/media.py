"""Images of a request, decoded: from data URIs, allowed hosts, paths of Python callers, bytes. Header before pixels."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import os
import re
import stat
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from drivetrain.core.capabilities import Limits
from drivetrain.core.errors import InvalidRequest, NotReady
from drivetrain.core.messages import ImagePart
from drivetrain.worker.fetch import Fetcher

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_UNENCODED_CHARS = 3_000_000

_TYPES = ("image/", "application/octet-stream")
_PADDING = {"%2b": "+", "%2f": "/", "%3d": "=", "%0a": "", "%0d": "", "%20": ""}
"""All that base64 can need percent-encoding for."""


FETCHES = 16
"""At once. They wait for other people's servers, so they have threads of their own: the event loop's are for what is
done soon, the decoding of images and the closing of an engine among it."""


class MediaLoader:
    """`allow_hosts` are the only hosts that anything is fetched from; none by default. `close` at the end."""

    def __init__(
        self, limits: Limits, *, allow_hosts: frozenset[str] = frozenset(), fetcher: Fetcher | None = None
    ) -> None:
        self._limits = limits
        self._fetcher = fetcher or Fetcher(allow_hosts, max_bytes=limits.max_image_bytes)
        self._fetching = ThreadPoolExecutor(FETCHES, thread_name_prefix="drivetrain-fetch")

    def close(self) -> None:
        """What is being fetched is not waited for."""
        self._fetching.shutdown(wait=False, cancel_futures=True)

    async def load(self, part: ImagePart, where: str) -> Any:
        """An RGB image of Pillow. Raises `InvalidRequest` with `where` as its param."""
        if part.data is None and part.path is None and _scheme(part.url).startswith(("http://", "https://")):
            fetch = partial(self._fetcher.fetch, part.url or "", where)
            try:
                fetching = asyncio.get_running_loop().run_in_executor(self._fetching, fetch)
            except RuntimeError as exc:  # the threads are gone
                raise NotReady("the worker is stopped") from exc
            data = await fetching
            return await asyncio.to_thread(self._decode, data, where)
        return await asyncio.to_thread(lambda: self._decode(self._bytes(part, where), where))

    def _decode(self, data: bytes, where: str) -> Any:
        if len(data) > self._limits.max_image_bytes:
            raise self._too_long(where)
        if not data:
            raise _refused("the image is empty", where)
        return decode(data, self._limits.max_image_pixels, where)

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
            raise _refused(f"the image {name} cannot be read: {why}", where) from exc

    def _data_uri(self, url: str, where: str) -> bytes:
        comma = url.find(",", 0, 256)
        kind, *options = url[len("data:") : comma].lower().split(";")
        if comma < 0 or not (kind.strip() or _TYPES[0]).startswith(_TYPES):
            raise _refused("the data URI is no image; write data:image/png;base64,…", where)
        encoded = bool(options) and options[-1].strip() == "base64"
        if len(url) > self._limits.max_image_bytes * 2 + 1024:
            raise self._too_long(where)
        body = url[comma + 1 :]
        if not encoded:
            if len(body) > MAX_UNENCODED_CHARS:
                raise _refused("a data URI this long must be in base64", where)
            return urllib.parse.unquote_to_bytes(body)
        try:
            bare = re.sub(r"%(2[bBfF0]|3[dD]|0[aAdD])", lambda found: _PADDING[found[0].lower()], body)
            bare = re.sub(r"\s+", "", bare)
            return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise _refused("the data URI does not hold base64", where) from exc

    def _too_long(self, where: str) -> InvalidRequest:
        return _refused(f"the image has more than {self._limits.max_image_bytes} bytes", where)


def _scheme(url: str | None) -> str:
    return (url or "")[:8].lower()


def decode(data: bytes, max_pixels: int, where: str) -> Any:
    """The first frame, upright, on white where it is transparent. The size is judged before a pixel is decoded."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _refused(f"the image has {width} x {height} pixels; the limit is {max_pixels}", where)
            image.load()
            return _flattened(ImageOps.exif_transpose(image))
    except InvalidRequest:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise _refused(f"the image has too many pixels; the limit is {max_pixels}", where) from exc
    except Exception as exc:
        raise _refused(f"the image cannot be decoded; send a whole {', '.join(FORMATS)}", where) from exc


def _flattened(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")


def _refused(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {message}", param=where)
