"""Images from every source: formats and modes become RGB, and what is no image is refused without a trace of paths."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
from PIL import Image

from drivetrain.core.capabilities import Limits
from drivetrain.core.errors import InvalidRequest, NotReady
from drivetrain.core.messages import ImagePart
from drivetrain.worker.media.fetch import Fetcher
from drivetrain.worker.media.loader import FETCHES, FORMATS, MAX_UNENCODED_CHARS, MediaLoader
from drivetrain.worker.media.pictures import PixelRoom

WHERE = "messages[0].content[1]"
LIMITS = Limits(max_image_bytes=100_000, max_image_pixels=10_000)


def encoded(form: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (4, 3), **options: Any) -> bytes:
    file = io.BytesIO()
    color: Any = 200 if len(mode) == 1 or mode.startswith("I") else (200, 10, 20, 255)[: len(mode)]
    Image.new(mode, size, color).save(file, form, **options)
    return file.getvalue()


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int, body: bytes = b"") -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def loader_of(limits: Limits, fetcher: Any = None) -> MediaLoader:
    return MediaLoader(limits, room=PixelRoom(1_000_000), fetcher=fetcher)


async def load(*, limits: Limits = LIMITS, **part: Any) -> Image.Image:
    (image,) = await loader_of(limits).load([(ImagePart(**part), WHERE)])
    assert isinstance(image, Image.Image)
    return image


async def refusal(*, limits: Limits = LIMITS, **part: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await load(limits=limits, **part)
    assert caught.value.param == WHERE
    assert caught.value.message.startswith(f"{WHERE}: ")
    assert len(caught.value.message) < 300
    return caught.value.message


@pytest.mark.parametrize("form", FORMATS)
async def test_every_format_is_read(form: str) -> None:
    image = await load(url=uri(encoded(form), f"image/{form.lower()}"))
    assert (image.mode, image.size) == ("RGB", (4, 3))
    assert all(abs(a - b) < 12 for a, b in zip(image.getpixel((1, 1)), (200, 10, 20), strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "mode", "expected"),
    [
        ("PNG", "1", (255, 255, 255)),
        ("PNG", "L", (200, 200, 200)),
        ("PNG", "P", None),
        ("PNG", "I;16", (0, 0, 0)),
        ("PNG", "RGBA", (200, 10, 20)),
        ("JPEG", "CMYK", None),
        ("GIF", "P", None),
        ("WEBP", "RGBA", None),
    ],
)
async def test_every_mode_becomes_rgb(form: str, mode: str, expected: tuple[int, int, int] | None) -> None:
    image = await load(data=encoded(form, mode))
    assert image.mode == "RGB"
    assert expected is None or image.getpixel((0, 0)) == expected


async def test_16_bits_of_grey_keep_their_brightness() -> None:
    grey = Image.new("I;16", (2, 1))
    grey.putpixel((0, 0), 65535)
    grey.putpixel((1, 0), 32768)
    for options in ({}, {"transparency": 0}):
        file = io.BytesIO()
        grey.save(file, "PNG", **options)
        image = await load(data=file.getvalue())
        assert [image.getpixel((x, 0)) for x in range(2)] == [(255,) * 3, (128,) * 3]


async def test_what_is_transparent_is_white() -> None:
    for mode, color in (("RGBA", (9, 9, 9, 0)), ("LA", (9, 0))):
        file = io.BytesIO()
        Image.new(mode, (1, 1), color).save(file, "PNG")
        assert (await load(data=file.getvalue())).getpixel((0, 0)) == (255, 255, 255)
    file = io.BytesIO()
    palette = Image.new("P", (1, 1), 3)
    palette.putpalette([9] * 12)
    palette.save(file, "PNG", transparency=3)
    assert (await load(data=file.getvalue())).getpixel((0, 0)) == (255, 255, 255)


async def test_exif_turns_the_image_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert (await load(data=encoded("JPEG", size=(40, 20), exif=exif))).size == (20, 40)


async def test_of_many_frames_the_first() -> None:
    frames = [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(200)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert (await load(data=file.getvalue())).getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize(
    "shape",
    [
        lambda b64: f"data:image/png;base64,{b64}",
        lambda b64: f"DATA:IMAGE/PNG;BASE64,{b64}",
        lambda b64: f"data:image/png;charset=utf-8;base64,{b64}",
        lambda b64: f"data:;base64,{b64}",
        lambda b64: f"data:application/octet-stream;base64,{b64}",
        lambda b64: "data:image/png;base64," + b64.rstrip("="),
        lambda b64: "data:image/png;base64," + "\r\n".join(b64[i : i + 60] for i in range(0, len(b64), 60)),
        lambda b64: "data:image/png;base64," + quote(b64, safe=""),
        lambda b64: "data:image/png," + quote(base64.b64decode(b64)),
    ],
)
async def test_data_uris_as_people_write_them(shape: Any) -> None:
    assert (await load(url=shape(base64.b64encode(encoded(size=(31, 7))).decode()))).size == (31, 7)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data:",
        "data:,",
        "data:image/png;base64,",
        "data:image/png;base64",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,A",
        "data:image/png;base64,é",
        "data:image/png;base64,%zz",
        "data:text/html;base64,PGI+",
        "data:" + "a" * 50_000,
        "data:image/png" + ";a=b" * 10_000 + ",x",
        "iVBORw0KGgo=",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "ftp://example.com/a.png",
        "/etc/passwd",
        "javascript:alert(1)",
        "http://example.com/a.png",
        "https://127.0.0.1/a.png",
        "http://[::1",
    ],
)
async def test_what_is_no_image_url(url: str) -> None:
    message = await refusal(url=url or " ")
    assert "passwd" not in message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"not an image",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"GIF89a",
        b"\x89PNG\r\n\x1a\n",
        encoded("PNG", size=(90, 90))[:-30],
        encoded("JPEG", size=(90, 90))[:-100],
        encoded("TIFF"),
        encoded("ICO", size=(16, 16)),
        encoded("PPM"),
        png(0, 5),
        png(5, 0),
        png(5, 5),
        png(5, 5, b"garbage"),
        encoded("PNG", size=(64, 64)).replace(b"IDAT", b"IDAX"),
    ],
    ids=lambda data: repr(data[:8]),
)
async def test_what_cannot_be_decoded(data: bytes) -> None:
    await refusal(data=data)


async def test_damaged_files_of_every_format_never_escape() -> None:
    for form in FORMATS:
        whole = encoded(form, size=(20, 20))
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
            for data in (damaged, whole[:at]):
                with contextlib.suppress(InvalidRequest):
                    await load(data=data)


@pytest.mark.parametrize(("width", "height"), [(101, 100), (30_000, 30_000), (2**31 - 1, 2**31 - 1), (20_000, 9_000)])
async def test_too_many_pixels_are_refused_from_the_header(width: int, height: int) -> None:
    assert "pixels" in await refusal(data=png(width, height))


async def test_a_file_that_unpacks_to_much_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = png(9_000, 9_000, zlib.compress(bytes(1_000_000), 9))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were decoded"))
    assert "9000 x 9000 pixels" in await refusal(data=bomb)


async def test_too_many_bytes(tmp_path: Path) -> None:
    data = os.urandom(LIMITS.max_image_bytes + 1)
    (tmp_path / "big.png").write_bytes(data)
    assert "more than 100000 bytes" in await refusal(data=data)
    assert "more than 100000 bytes" in await refusal(url=uri(data))
    assert "more than 100000 bytes" in await refusal(url=uri(data * 3))
    assert "more than 100000 bytes" in await refusal(path=str(tmp_path / "big.png"))
    long = "data:image/png," + "%41" * (MAX_UNENCODED_CHARS // 3 + 1)
    assert "base64" in await refusal(url=long, limits=Limits())


async def test_paths_of_python_callers(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    assert (await load(path=str(tmp_path / "a.png"))).size == (4, 3)
    os.mkfifo(tmp_path / "pipe")
    for path in ("missing.png", ".", "pipe", "a\x00b.png", "x" * 5000):
        message = await refusal(path=str(tmp_path / path))
        assert str(tmp_path) not in message
    for path in ("", "/dev/zero"):
        await refusal(path=path)


class Slow:
    """A fetcher whose hosts answer when they are told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = threading.Event()

    def fetch(self, url: str, where: str) -> bytes:
        self.asked += 1
        self.answer.wait(30)
        return encoded()


async def test_slow_hosts_keep_nobody_waiting_but_those_who_asked_for_them() -> None:
    slow = Slow()
    loader = loader_of(LIMITS, cast("Fetcher", slow))
    part = ImagePart(url="https://a.example/x")
    fetching = [asyncio.create_task(loader.load([(part, WHERE)])) for _ in range(40)]
    try:
        async with asyncio.timeout(10):
            while slow.asked < FETCHES:
                await asyncio.sleep(0.01)
            await loader.load([(ImagePart(url=uri(encoded())), WHERE)])
            await asyncio.to_thread(lambda: None)
    finally:
        slow.answer.set()
    assert len(await asyncio.gather(*fetching)) == 40
    loader.close()
    with pytest.raises(NotReady):
        await loader.load([(part, WHERE)])
