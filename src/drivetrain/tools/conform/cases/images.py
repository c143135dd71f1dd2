"""Images in a chat: used by vision models, refused by others, and never fetched from a private address."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from typing import Any

from drivetrain.tools.conform.answers import CHAT, read_usage
from drivetrain.tools.conform.case import Area, Cases
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import honoured, message_of, refused
from drivetrain.tools.conform.trial import Trial
from drivetrain.tools.conform.verdict import Failed, NotOffered, NotRun, ensure

CASES = Cases(Area.IMAGES, "images are not refused by this model", needs=CHAT)
case = CASES.case

ASK = "What is this?"
WAIT_S = 0.5
_REFUSALS = ("image", "vision", "multimodal", "multi-modal", "mmproj")


def png(width: int, height: int, *, rows: int | None = None) -> bytes:
    """A plain picture. With fewer `rows` than its height it is a bomb: small here, huge when decoded."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + b"\xd0\x20\x20" * min(width, 256)
    data = zlib.compress(row * (height if rows is None else rows))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def data_uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def _ask(t: Trial, image_url: Any) -> RecordedExchange:
    content = [{"type": "text", "text": ASK}, {"type": "image_url", "image_url": image_url}]
    return await t.post(CHAT.path, t.body(CHAT, messages=[{"role": "user", "content": content}], max_tokens=4))


async def _counts(t: Trial) -> tuple[int, int]:
    """The prompt tokens with a picture and without. Raises `NotOffered` if the model says that it cannot see.

    `images.png` checks the status of that refusal.
    """
    exchange = await _ask(t, {"url": data_uri(png(64, 64))})
    if exchange.status != 200:
        message = message_of(exchange)
        if any(word in message.lower() for word in _REFUSALS):
            raise NotOffered(f"the server says: {message}"[:300])
        honoured(exchange, {"messages": None, "content": None})
    usage = read_usage(exchange.json())
    if usage is None:
        raise Failed("the answer to a picture has no usage")
    return usage.prompt, (await t.generate(CHAT, **CHAT.prompt_fields(ASK), max_tokens=4)).counted.prompt


async def _sees(t: Trial) -> None:
    """Raises `NotOffered` if pictures are refused, and `NotRun` if they are ignored."""
    with_picture, alone = await _counts(t)
    if with_picture <= alone:
        raise NotRun("pictures are ignored; see images.png")


@case("png", asks="a PNG as a data URI", holds="it is answered, and counts prompt tokens; or it is refused with 4xx")
async def _png(t: Trial) -> None:
    try:
        with_picture, alone = await _counts(t)
    except NotOffered as exc:
        status = t.exchanges[-1].status
        ensure(status < 500 or status == 501, f"a picture is refused with status {status}, not 4xx: {exc.reason}")
        raise
    ensure(with_picture > alone, f"{with_picture} prompt tokens with the picture, {alone} without: it is ignored")


def _bad(name: str, what: str, image_url: Any) -> None:
    @case(name, asks=what, holds="4xx")
    async def _check(t: Trial) -> None:
        await _sees(t)
        refused(await _ask(t, image_url), what)


_bad("corrupt", "a data URI that is not a picture", {"url": data_uri(b"no picture at all")})
_bad("bare_string", "image_url as a bare string", data_uri(png(8, 8)))
_bad("file", "a file: URL", {"url": "file:///etc/hostname"})
_bad("bomb", "a PNG of 60000 x 60000 pixels in a few bytes", {"url": data_uri(png(60000, 60000, rows=4))})


@case("private", asks="the URL of a private address where this command listens", holds="4xx, and no request arrives")
async def _private(t: Trial) -> None:
    await _sees(t)
    if not t.client.address.local:
        refused(await _ask(t, {"url": "http://127.0.0.1:9/picture.png"}), "a private address")
        return
    requested = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        exchange = await _ask(t, {"url": f"http://127.0.0.1:{port}/picture.png"})
        await asyncio.sleep(WAIT_S)
    ensure(not requested.is_set(), "the server fetched a picture from a private address")
    refused(exchange, "a private address")
