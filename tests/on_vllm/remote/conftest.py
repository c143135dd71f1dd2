"""The remote engine in front of vLLM's own server, which is started once for the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contract.remote_rig import RemoteRig
from drivetrain.worker.worker import EngineWorker
from on_vllm.remote.vllm_server import VllmServer, running
from on_vllm.vllm_rig import MODEL


class RemoteVllmRig(RemoteRig):
    """Token ids over `/v1/completions`. In company vLLM's kernels may round differently."""

    name = "remote-vllm"
    exact = False

    def __init__(self, server: VllmServer) -> None:
        self._server = server

    @asynccontextmanager
    async def upstream(self, *, infill: bool) -> AsyncIterator[str]:
        """The model has no tokens for filling in the middle."""
        yield f"{self._server.url}#{MODEL}"
        await asyncio.to_thread(self._server.settle)


@pytest.fixture(scope="session")
def server(shallow: Path) -> Iterator[VllmServer]:
    with running(shallow) as started:
        yield started


@pytest.fixture(scope="session")
def rig(server: VllmServer) -> RemoteRig:
    return RemoteVllmRig(server)


@pytest.fixture(scope="session")
async def worker(rig: RemoteRig) -> AsyncIterator[EngineWorker]:
    """One worker for all tests that leave it as they found it; they assert that they did."""
    async with rig.open() as made:
        yield made
