"""Tests that run vLLM itself: in `.venv-vllm` (`make test-vllm`), with one vLLM for the whole session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.rewriting import rewrite_asserts
from contract.shallow import LAYERS, shallow_copy
from drivetrain.assembly import spec_of
from drivetrain.engines.checkpoint.gguf import safetensors_folder
from drivetrain.store.store import Store
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from on_vllm.vllm_rig import VllmRig
from probe import runs_of

rewrite_asserts(Path(__file__).parent)
pytest.register_assert_rewrite("recorded_spans")


def pytest_configure(config: pytest.Config) -> None:
    """vLLM never closes its zmq context: one that died or did not start leaves it to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")


@pytest.fixture(scope="session")
def shallow(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small real model with four of its layers."""
    store = Store()
    spec = spec_of(store.resolve(smollm2), Settings(), store)
    whole = safetensors_folder(spec, lambda what, share: None, engine="vllm")
    return shallow_copy(whole, LAYERS, tmp_path_factory.mktemp("shallow") / "model")


@pytest.fixture(scope="session")
async def rig(shallow: Path) -> AsyncIterator[VllmRig]:
    made = VllmRig(shallow)
    yield made
    await made.close()


@pytest.fixture(scope="session")
async def worker(rig: VllmRig) -> AsyncIterator[EngineWorker]:
    """One worker for all tests that leave it as they found it; they assert that they did."""
    async with rig.open() as made:
        yield made


@pytest.fixture(autouse=True)
async def nothing_left_behind(rig: VllmRig, worker: EngineWorker) -> AsyncIterator[None]:
    yield
    async with asyncio.timeout(30):
        while worker.status.running or worker.status.waiting or not rig.idle(worker):
            await asyncio.sleep(0.005)
    assert not runs_of(worker)
