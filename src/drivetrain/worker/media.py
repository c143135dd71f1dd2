"""Images of a request, decoded: from data URIs, allowed hosts, paths of Python callers, bytes. Header before pixels."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import os
import re
import urllib.parse
import warnings
from typing import Any

from drivetrain.core.capabilities import Limits
from drivetrain.core.errors import InvalidRequest
from drivetrain.core.messages import ImagePart
from drivetrain.worker.fetch import Fetcher

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

_DATA_URI = re.compile(
    r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<options>(?:;[\w.+-]+=[^;,]*)*)(?P<base64>;base64)?,", re.IGNORECASE
)


class MediaLoader:
    """`allow_hosts` are the only hosts that anything is fetched from; none by default."""

    def __init__(
        self, limits: Limits, *, allow_hosts: frozenset[str] = frozenset(), fetcher: Fetcher | None = None
    ) -> None:
        self._limits = limits
        self._fetcher = fetcher or Fetcher(allow_hosts, max_bytes=limits.max_image_bytes)

    async def load(self, part: ImagePart, where: str) -> Any:
        """An RGB image of Pillow. Raises `InvalidRequest` with `where` as its param."""
        return await asyncio.to_thread(self._load, part, where)

    def _load(self, part: ImagePart, where: str) -> Any:
        data = self._bytes(part, where)
        if len(data) > self._limits.max_image_bytes:
            raise _refused(f"the image has more than {self._limits.max_image_bytes} bytes", where)
        return decode(data, self._limits.max_image_pixels, where)

    def _bytes(self, part: ImagePart, where: str) -> bytes:
        if part.data is not None:
            return part.data
        if part.path is not None:
            return self._read(part.path, where)
        url = part.url or ""
        if url[:5].lower() == "data:":
            return self._data_uri(url, where)
        if url[:7].lower() == "http://" or url[:8].lower() == "https://":
            return self._fetcher.fetch(url, where)
        raise _refused("an image must be a data URI, or an http(s) URL of an allowed host", where)

    def _read(self, path: str, where: str) -> bytes:
        name = os.path.basename(path)
        try:
            with open(path, "rb") as file:
                return file.read(self._limits.max_image_bytes + 1)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "not a path"
            raise _refused(f"the image {name} cannot be read: {why}", where) from exc

    def _data_uri(self, url: str, where: str) -> bytes:
        match = _DATA_URI.match(url)
        if match is None:
            raise _refused("the data URI is malformed; write data:image/png;base64,…", where)
        body = url[match.end() :]
        if len(body) > self._limits.max_image_bytes * 4 // 3 + 1024 and match["base64"]:
            raise _refused(f"the image has more than {self._limits.max_image_bytes} bytes", where)
        if not match["base64"]:
            return urllib.parse.unquote_to_bytes(body)
        try:
            plain = re.sub(r"\s+", "", urllib.parse.unquote(body))
            return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise _refused("the data URI does not hold base64", where) from exc


def decode(data: bytes, max_pixels: int, where: str) -> Any:
    """The first frame, upright, on white where it is transparent. The size is judged before a pixel is decoded."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise _refused(f"the image has {width} x {height} pixels; the limit is {max_pixels}", where)
                image.load()
                upright: Any = ImageOps.exif_transpose(image)
                return _flattened(upright)
    except InvalidRequest:
        raise
    except Exception as exc:
        raise _refused(f"the image cannot be decoded; send a whole {', '.join(FORMATS)}", where) from exc


def _flattened(image: Any) -> Any:
    from PIL import Image

    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    if image.mode.startswith("I;16") or image.mode == "I":
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    return image.convert("RGB")


def _refused(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {message}", param=where)
