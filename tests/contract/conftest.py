"""Every test of this folder runs on every rig. `worker` is a fresh one with default settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from contract.native_rig import NativeRig
from contract.remote_rig import RemoteLlamaCppRig, RemoteRig
from contract.rigs import CANNOT_RANK, NEED_WEIGHTS, FakeRig, LlamaCppRig, Rig, TransformersRig
from drivetrain.worker.worker import EngineWorker
from probe import runs_of

RIGS: dict[str, Callable[[Callable[[str], Path]], Rig]] = {
    "fake": lambda checkpoint: FakeRig(),
    "llamacpp": lambda checkpoint: LlamaCppRig(),
    "native": NativeRig,
    "remote": lambda checkpoint: RemoteRig(),
    "remote-llamacpp": lambda checkpoint: RemoteLlamaCppRig(),
    "transformers": TransformersRig,
}

MARKS = {name: [pytest.mark.slow] for name in NEED_WEIGHTS}
MARKS["remote-llamacpp"] = [pytest.mark.slow, pytest.mark.in_turn]


@pytest.fixture(
    params=[pytest.param(name, marks=MARKS.get(name, [])) for name in sorted(RIGS)],
    scope="session",
)
def rig(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[Rig]:
    made = RIGS[request.param](checkpoint)
    yield made
    if isinstance(made, RemoteLlamaCppRig):
        made.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _cannot_rank(item)]


def _cannot_rank(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    return given is not None and "ranker" in getattr(item, "fixturenames", ()) and given.params["rig"] in CANNOT_RANK


@pytest.fixture(scope="session")
async def worker(rig: Rig) -> AsyncIterator[EngineWorker]:
    """One worker for all tests that leave it as they found it; they assert that they did."""
    async with rig.open() as made:
        yield made


@pytest.fixture(autouse=True)
async def nothing_left_behind(rig: Rig, worker: EngineWorker) -> AsyncIterator[None]:
    yield
    import asyncio

    async with asyncio.timeout(5):
        while worker.status.running or worker.status.waiting or not rig.idle(worker):
            await asyncio.sleep(0.005)
    assert not runs_of(worker)
