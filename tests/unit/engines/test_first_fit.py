"""The first engine that can run the model: what is passed on, what is not, and what is left of those before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drivetrain.core.engine import EmbedItem, EngineInfo, ModelSpec, Progress, WeightsFormat
from drivetrain.core.errors import DrivetrainError, InvalidSetting, LoadFailed, OutOfMemory, UnfitEngine
from drivetrain.engines.fake import FakeEngine
from drivetrain.engines.first_fit import Candidate, FirstFit
from drivetrain.worker.worker import EngineWorker

SPEC = ModelSpec(name="m", path=Path(), format=WeightsFormat.NONE)
UNFIT = UnfitEngine("no: it is odd; use the other", why="it is odd")


class Loading(FakeEngine):
    """A fake whose load ends in an error, if it has one. Every load and every close is written down."""

    def __init__(self, name: str, log: list[str], error: DrivetrainError | None = None) -> None:
        super().__init__()
        self._name, self._log, self._error = name, log, error

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        self._log.append(f"load {self._name}")
        if self._error is not None:
            raise self._error
        return await super().load(spec, progress)

    async def close(self) -> None:
        self._log.append(f"close {self._name}")
        await super().close()


def candidates(log: list[str], *errors: DrivetrainError | None, lacks: tuple[str, ...] = ()) -> list[Candidate]:
    def one(name: str, error: DrivetrainError | None) -> Candidate:
        return Candidate(name, lambda: Loading(name, log, error), lacks if name != "a" else ())

    return [one(name, error) for name, error in zip("abc", errors, strict=False)]


def quietly(what: str, share: float | None) -> None:
    pass


async def test_an_unfit_engine_is_closed_before_the_next_one_loads() -> None:
    log: list[str] = []
    said: list[str] = []
    worker = EngineWorker(
        FirstFit(candidates(log, UNFIT, UNFIT, None), ["before"]), SPEC, progress=lambda what, share: said.append(what)
    )
    await worker.start()
    assert log == ["load a", "close a", "load b", "close b", "load c"]
    assert worker.metadata.notes == (
        "before",
        "a cannot run this model: it is odd; b runs it",
        "b cannot run this model: it is odd; c runs it",
    )
    assert [what for what in said if "cannot" in what] == [*worker.metadata.notes[1:]]
    assert (await worker.generate(prompt="x", max_tokens=3, temperature=0)).text == "The"
    assert len((await worker.embed(["x"])).vectors) == 1
    assert worker.status.engine_alive
    await worker.stop()
    assert log[-1] == "close c"
    assert not worker.status.engine_alive


async def test_it_is_the_engine_that_fits() -> None:
    log: list[str] = []
    engine = FirstFit(candidates(log, None, None))
    info = await engine.load(SPEC, quietly)
    assert info.notes == ()
    plain = FakeEngine()
    await plain.load(SPEC, quietly)
    assert await engine.embed([EmbedItem((1, 2))]) == await plain.embed([EmbedItem((1, 2))])
    assert engine.memory() == plain.memory() == ()
    assert engine.health().alive
    await plain.close()
    await engine.close()
    assert not engine.health().alive
    assert log == ["load a", "close a"]


@pytest.mark.parametrize("error", [LoadFailed("damaged"), OutOfMemory("too large"), InvalidSetting("bad", param="x")])
async def test_no_other_error_passes_it_on(error: DrivetrainError) -> None:
    log: list[str] = []
    engine = FirstFit(candidates(log, error, None))
    with pytest.raises(type(error)) as caught:
        await engine.load(SPEC, quietly)
    assert caught.value is error
    assert "load b" not in log
    await engine.close()


async def test_the_last_refusal_is_the_error() -> None:
    log: list[str] = []
    engine = FirstFit(candidates(log, UNFIT, UNFIT))
    with pytest.raises(UnfitEngine):
        await engine.load(SPEC, quietly)
    await engine.close()
    assert log == ["load a", "close a", "load b", "close b"]


async def test_a_setting_that_the_next_one_lacks_is_refused_with_the_reason() -> None:
    log: list[str] = []
    engine = FirstFit(candidates(log, UNFIT, None, lacks=("kv_cache_gb", "max_batch")))
    with pytest.raises(InvalidSetting) as caught:
        await engine.load(SPEC, quietly)
    assert caught.value.message == (
        "a cannot run this model (it is odd), and b has no setting kv_cache_gb; leave it out"
    )
    assert caught.value.param == "kv_cache_gb"
    assert log == ["load a", "close a"]


async def test_closed_while_it_loads_it_tries_no_further() -> None:
    log: list[str] = []
    entered, closed = asyncio.Event(), asyncio.Event()

    class Waiting(Loading):
        async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
            entered.set()
            await closed.wait()
            return await super().load(spec, progress)

    engine = FirstFit([Candidate("w", lambda: Waiting("w", log, UNFIT)), *candidates(log, None)])
    loading = asyncio.create_task(engine.load(SPEC, quietly))
    await entered.wait()
    await engine.close()
    closed.set()
    with pytest.raises(LoadFailed):
        await loading
    assert "load a" not in log
