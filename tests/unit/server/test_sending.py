"""Parts of a body that are sent from outside of any task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drivetrain.server.sending import GIVE_KEY, Sender


class Wire:
    """An ASGI `send` that waits while it is full."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.room = asyncio.Event()
        self.left = False

    async def send(self, message: Any) -> None:
        try:
            await self.room.wait()
        except BaseException:
            self.left = True
            raise
        self.sent.append(message["body"])


async def test_with_room_it_is_sent_in_the_call() -> None:
    wire = Wire()
    wire.room.set()
    sender = Sender(wire.send, {})
    asyncio.get_running_loop().call_soon(sender.give, b"a")
    await asyncio.sleep(0)
    assert wire.sent == [b"a"]
    assert sender.give(b"b")
    await sender.drained()
    assert wire.sent == [b"a", b"b"]


@pytest.mark.parametrize("late", [False, True])
async def test_without_room_it_is_sent_once_there_is_some(late: bool) -> None:
    wire = Wire()
    sender = Sender(wire.send, {})
    assert not sender.give(b"a")
    if not late:
        wire.room.set()
    drained = asyncio.create_task(sender.drained())
    await asyncio.sleep(0)
    assert drained.done() is False or not late
    wire.room.set()
    await drained
    assert wire.sent == [b"a"]
    assert sender.give(b"b")


async def test_whoever_waits_may_be_cancelled() -> None:
    wire = Wire()
    sender = Sender(wire.send, {})
    assert not sender.give(b"a")
    drained = asyncio.create_task(sender.drained())
    await asyncio.sleep(0)
    drained.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drained
    assert wire.left
    assert wire.sent == []


async def test_what_sending_raises_is_raised() -> None:
    async def broken(message: Any) -> None:
        raise OSError("no way")

    with pytest.raises(OSError, match="no way"):
        Sender(broken, {}).give(b"a")


async def test_a_connection_s_short_way_comes_first_and_the_usual_one_where_it_is_not_open() -> None:
    wire, short = Wire(), list[bytes]()
    wire.room.set()

    def give(data: bytes) -> bool:
        if data == b"head":
            return False
        short.append(data)
        return True

    sender = Sender(wire.send, {"state": {GIVE_KEY: lambda: give}})
    assert sender.give(b"head")
    assert sender.give(b"a")
    assert (wire.sent, short) == ([b"head"], [b"a"])
