"""The door before llama.cpp: how many prompts are sent before it has begun with them."""

from __future__ import annotations

import asyncio

from drivetrain.engines.llamacpp.door import Door, Entry


class Comers:
    """Prompts at a door: who is in, and who has begun."""

    def __init__(self, room: int) -> None:
        self._door = Door(room)
        self.inside: dict[str, Entry] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, **sizes: int) -> None:
        for name, size in sizes.items():
            self.tasks[name] = asyncio.create_task(self._enter(name, size))
        await asyncio.sleep(0)

    async def _enter(self, name: str, size: int) -> None:
        self.inside[name] = await self._door.enter(size)

    async def begin(self, name: str) -> None:
        self.inside.pop(name).leave()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)


async def test_prompts_go_in_by_their_size_and_in_order() -> None:
    comers = Comers(room=32)
    await comers.come(a=10, b=20, c=10, d=2, e=500, f=1)
    assert set(comers.inside) == {"a", "b"}
    await comers.begin("b")
    assert set(comers.inside) == {"a", "c", "d"}
    await comers.begin("a")
    await comers.begin("c")
    assert set(comers.inside) == {"d"}
    await comers.begin("d")
    assert set(comers.inside) == {"e"}
    await comers.begin("e")
    assert set(comers.inside) == {"f"}


async def test_an_entry_is_left_once() -> None:
    comers = Comers(room=32)
    await comers.come(a=30, b=30, c=30)
    a = comers.inside["a"]
    await comers.begin("a")
    a.leave()
    await comers.settle()
    assert set(comers.inside) == {"b"}


async def test_cancelling_at_the_door_stops_nobody_behind() -> None:
    comers = Comers(room=32)
    await comers.come(a=20, long=500, b=10, c=30)
    assert set(comers.inside) == {"a"}
    comers.tasks["long"].cancel()
    await comers.settle()
    assert set(comers.inside) == {"a", "b"}


async def test_cancelling_who_was_just_let_in_lets_in_the_next() -> None:
    comers = Comers(room=32)
    await comers.come(a=30, b=30, c=30)
    comers.inside.pop("a").leave()
    comers.tasks["b"].cancel()
    await comers.settle()
    assert set(comers.inside) == {"c"}
