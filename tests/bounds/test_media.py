"""Images: asked for last, decoded in a room of so many pixels, and let go as soon as the engine has them."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bounds.attack import victim
from drivetrain.core.engine import EngineRequest, ModelSpec, StepSink, WeightsFormat
from drivetrain.core.errors import Cancelled, DeadlineExceeded, InvalidRequest
from drivetrain.core.messages import ImagePart
from drivetrain.engines.base.channel import StepChannel
from drivetrain.engines.fake import FakeEngine, Script
from drivetrain.worker.media import loader as media
from drivetrain.worker.media.pictures import PixelRoom
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="fake", path=Path(), format=WeightsFormat.NONE)
SOON_S = 60


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def chat(number: int, data: bytes) -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}] * number
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "Describe it."}]}]


@pytest.mark.parametrize("family", ["chatml", "vicuna"])
def test_a_form_without_a_place_for_images_has_none_decoded(family: str) -> None:
    """16 pictures of 20 megapixels in 55 kB took 1.2 GB, two such requests 3.8 GB, and it stayed."""
    body = {"model": "fake", "messages": chat(16, png(5000, 4000)), "max_tokens": 1}
    with victim(script={"vision": True}, worker={"family": family}) as server:
        before = server.reset()
        for _ in range(2):
            status, answer = server.post("/v1/chat/completions", body)
            assert (status, answer["error"]["code"]) == (400, "unsupported")
        assert server.figures().peak_bytes < before.peak_bytes + 50 * 2**20


def test_a_model_that_sees_refuses_too_many_pixels_before_it_decodes_one() -> None:
    with victim(script={"vision": True}) as server:
        before = server.reset()
        body = {"model": "fake", "messages": chat(16, png(5000, 4000)), "max_tokens": 1}
        status, answer = server.post("/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, "messages[0].content[5]")
        assert "120,000,000 pixels; the limit is 100,000,000" in answer["error"]["message"]
        assert server.figures().peak_bytes < before.peak_bytes + 50 * 2**20


class Seeing(FakeEngine):
    """Keeps weak references to the images it was given, and waits to be told before it looks at them."""

    def __init__(self, **script: Any) -> None:
        super().__init__(Script(vision=True, **script))
        self.given: list[weakref.ref[Any]] = []

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        assert request.media is not None
        self.given += [weakref.ref(image) for image in request.media.images]
        return super().generate(request, sink)


@pytest.fixture
async def seeing() -> AsyncIterator[tuple[EngineWorker, Seeing]]:
    engine = Seeing(text="abcdefgh" * 100, step_delay_s=0.001)
    async with EngineWorker(engine, SPEC, Settings(max_decoded_pixels=1000, max_request_pixels=800)) as worker:
        yield worker, engine


def room(worker: EngineWorker) -> PixelRoom:
    assert worker._media is not None
    return worker._media._room


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            gc.collect()
            await asyncio.sleep(0.001)


async def test_images_are_gone_once_the_engine_has_told_the_prompt(seeing: tuple[EngineWorker, Seeing]) -> None:
    """They were kept until the answer ended, and by whoever kept the answer's stream."""
    worker, engine = seeing
    stream = worker.stream(messages=chat(2, png(20, 20)), max_tokens=700)
    await anext(stream)
    await until(lambda: len(engine.given) == 2 and not any(image() for image in engine.given))
    await until(lambda: room(worker).taken == 0)
    assert worker.status.running == 1
    await stream.aclose()


async def test_who_finds_no_room_waits_for_it(
    seeing: tuple[EngineWorker, Seeing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never are more pixels decoded than there is room for, however many requests come at once."""
    worker, _ = seeing
    most, decode = 0, media.decode

    def watched(data: bytes, where: str) -> Any:
        nonlocal most
        most = max(most, room(worker).taken)
        return decode(data, where)

    monkeypatch.setattr(media, "decode", watched)
    async with asyncio.timeout(SOON_S):
        results = await asyncio.gather(
            *(worker.generate(messages=chat(2, png(20, 20)), max_tokens=4) for _ in range(12))
        )
    assert len(results) == 12
    assert most == 800
    await until(lambda: room(worker).taken == 0)


@pytest.mark.parametrize("ending", ["left", "deadline", "broken image"])
async def test_room_is_given_back_however_it_ends(
    seeing: tuple[EngineWorker, Seeing], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    worker, _ = seeing
    hold, decode = asyncio.Event(), media.decode
    decoding = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(data: bytes, where: str) -> Any:
        loop.call_soon_threadsafe(decoding.set)
        asyncio.run_coroutine_threadsafe(hold.wait(), loop).result(SOON_S)
        return decode(data, where)

    monkeypatch.setattr(media, "decode", slow)
    broken = png(20, 20)[:-30] if ending == "broken image" else png(20, 20)
    timeout_s = 0.3 if ending == "deadline" else None
    stream = worker.stream(messages=chat(2, broken), max_tokens=4, timeout_s=timeout_s)
    reading = asyncio.ensure_future(anext(stream))
    async with asyncio.timeout(SOON_S):
        await decoding.wait()
        assert room(worker).taken == 800
        if ending == "left":
            await stream.aclose()
        elif ending == "broken image":
            hold.set()
        with pytest.raises((Cancelled, DeadlineExceeded, InvalidRequest)):
            await reading
    hold.set()
    await until(lambda: room(worker).taken == 0)
    monkeypatch.setattr(media, "decode", decode)
    await worker.generate(messages=chat(2, png(20, 20)), max_tokens=4)


async def test_the_room_is_first_come_first_served() -> None:
    room = PixelRoom(10)
    first = await room.take(6)
    big, small = (asyncio.create_task(room.take(pixels)) for pixels in (8, 2))
    left = asyncio.create_task(room.take(10))
    await asyncio.sleep(0)
    assert room.taken == 6
    left.cancel()
    first.let_go()
    first.let_go()
    pictures = await big
    await small
    assert room.taken == 10
    everything = asyncio.create_task(room.take(10_000))
    pictures.let_go()
    del pictures, small, big
    gc.collect()
    await everything
    assert room.taken == 10


async def test_one_image_of_a_python_caller_is_judged_as_well(seeing: tuple[EngineWorker, Seeing]) -> None:
    worker, _ = seeing
    with pytest.raises(InvalidRequest, match="1,600 pixels; the limit is 800"):
        await worker.generate(prompt="Hi", images=[ImagePart(data=png(40, 40))], max_tokens=1)
