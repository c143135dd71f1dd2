"""Who is given to llama.cpp for its next step, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from drivetrain.engines.llamacpp.step_room import Left, StepRoom


class Prompts:
    """Asks for a place for each, and keeps what it is told of steps with."""

    def __init__(self, room: StepRoom) -> None:
        self.room = room
        self.given: dict[str, Left] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def come(self, name: str, tokens: int) -> None:
        async def run() -> None:
            async with self.room.taken(tokens) as left:
                self.given[name] = left
                await self.ends[name].wait()

        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(run())
        await settle()

    async def told(self, name: str, left: int) -> None:
        self.given[name](left)
        await settle()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks.pop(name)
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(StepRoom(shared=128, step=128))


async def test_as_many_are_given_as_a_step_takes_whole(prompts: Prompts) -> None:
    for name in "abcd":
        await prompts.come(name, 51)
    assert set(prompts.given) == {"a", "b"}
    await prompts.told("a", 51)
    assert set(prompts.given) == {"a", "b", "c"}
    await prompts.told("a", 0)  # once more, for the same prompt
    assert set(prompts.given) == {"a", "b", "c"}
    await prompts.told("b", 51)
    assert set(prompts.given) == {"a", "b", "c", "d"}


async def test_one_that_alone_is_more_than_prompts_may_share_is_given_alone() -> None:
    prompts = Prompts(StepRoom(shared=32, step=128))
    for name, tokens in (("a", 20), ("b", 100), ("c", 12), ("d", 100)):
        await prompts.come(name, tokens)
    assert set(prompts.given) == {"a"}
    await prompts.told("a", 20)
    assert set(prompts.given) == {"a", "b"}
    await prompts.told("b", 100)
    assert set(prompts.given) == {"a", "b", "c"}
    await prompts.told("c", 12)
    assert set(prompts.given) == {"a", "b", "c", "d"}


async def test_who_comes_later_does_not_overtake(prompts: Prompts) -> None:
    for name, tokens in (("a", 100), ("b", 60), ("c", 5)):
        await prompts.come(name, tokens)
    assert set(prompts.given) == {"a"}
    await prompts.told("a", 100)
    assert set(prompts.given) == {"a", "b", "c"}


async def test_an_answer_that_goes_on_waits_for_no_prompt(prompts: Prompts) -> None:
    """All of it but a token is computed already."""
    for name, tokens in (("a", 128), ("b", 128), ("on", 1)):
        await prompts.come(name, tokens)
    assert set(prompts.given) == {"a", "on"}
    await prompts.told("on", 1)
    await prompts.told("a", 128)
    assert set(prompts.given) == {"a", "b", "on"}


async def test_one_that_never_begins_gives_its_place_back(prompts: Prompts) -> None:
    await prompts.come("a", 128)
    await prompts.come("b", 2)
    assert set(prompts.given) == {"a"}
    await prompts.end("a")
    assert set(prompts.given) == {"a", "b"}


async def test_nobody_waits_beside_one_that_fills_whole_steps(prompts: Prompts) -> None:
    for name, tokens in (("a", 100), ("b", 100), ("long", 300), ("c", 100)):
        await prompts.come(name, tokens)
    assert set(prompts.given) == {"a", "b", "long", "c"}
    await prompts.told("long", 300)
    await prompts.told("long", 172)
    await prompts.come("d", 100)
    assert "d" in prompts.given
    await prompts.told("long", 44)  # its last step has begun
    await prompts.come("e", 100)
    assert "e" not in prompts.given
    for name in "abcd":
        await prompts.told(name, 100)
    assert "e" in prompts.given


@pytest.mark.parametrize("at", ["waiting", "let in"])
async def test_one_that_is_cancelled_holds_up_nobody(prompts: Prompts, at: str) -> None:
    for name, tokens in (("a", 128), ("b", 128), ("c", 100)):
        await prompts.come(name, tokens)
    if at == "let in":
        prompts.given["a"](128)
    prompts.tasks["b"].cancel()
    await settle()
    assert prompts.tasks["b"].cancelled()
    if at == "waiting":
        assert set(prompts.given) == {"a"}
        await prompts.told("a", 128)
    assert set(prompts.given) == {"a", "c"}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shared", [32, 128])
async def test_whatever_comes_and_goes_all_of_it_is_free_in_the_end(seed: int, shared: int) -> None:
    prompts, rnd = Prompts(StepRoom(shared=shared, step=128)), random.Random(seed)

    async def cancel(name: str) -> None:
        prompts.tasks[name].cancel()
        await asyncio.wait([prompts.tasks.pop(name)])

    async def begin(name: str) -> None:
        if name in prompts.given:
            prompts.given[name](rnd.choice([0, 50, 128, 500]))

    ways: list[Callable[[str], Awaitable[None]]] = [prompts.end, cancel, begin]
    for number in range(60):
        await prompts.come(str(number), rnd.choice([1, 20, 51, 128, 129, 1000]))
        for name in rnd.sample(sorted(prompts.tasks), min(len(prompts.tasks), rnd.randrange(3))):
            if name in prompts.given or rnd.random() < 0.5:
                way = rnd.choice(ways) if name in prompts.given else cancel
                await way(name)
    while prompts.tasks:
        waiting = len(prompts.tasks)
        for name in [name for name in prompts.tasks if name in prompts.given]:
            await prompts.end(name)
        assert len(prompts.tasks) < waiting, "those who wait are never given"
    await prompts.come("one more", 128)
    assert "one more" in prompts.given
