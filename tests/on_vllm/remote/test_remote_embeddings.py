"""Embeddings in front of a vLLM that runs to embed: its answer to our ids is its own answer to the text."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.core.errors import ContextOverflow, InvalidRequest, Unsupported
from drivetrain.engines.remote.engine import UPSTREAM, RemoteEngine
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker
from on_vllm.remote.vllm_server import VllmServer, running
from on_vllm.vllm_rig import MODEL

TEXTS = ["Hello", "Something else entirely", "héllo 🌍 <|im_end|>"]


@pytest.fixture(scope="module")
def embedding_server(shallow: Path) -> Iterator[VllmServer]:
    with running(shallow, "--runner", "pooling", "--convert", "embed") as started:
        yield started


@pytest.fixture(scope="module")
async def embedder(embedding_server: VllmServer) -> AsyncIterator[EngineWorker]:
    options = {UPSTREAM: f"{embedding_server.url}#{MODEL}"}
    spec = ModelSpec(name="far", path=Path(), format=WeightsFormat.NONE, options=options)
    async with EngineWorker(RemoteEngine(), spec, Settings()) as worker:
        yield worker


async def test_vectors_are_its_own(embedding_server: VllmServer, embedder: EngineWorker) -> None:
    told = await asyncio.to_thread(embedding_server.embed, TEXTS)
    made = await embedder.embed(TEXTS)
    assert made.usage.prompt_tokens == told["usage"]["prompt_tokens"]
    assert embedder.metadata.embedding_size == len(made.vectors[0])
    for ours, entry in zip(made.vectors, told["data"], strict=True):
        assert math.hypot(*ours) == pytest.approx(1)
        assert ours == pytest.approx(entry["embedding"], abs=1e-4)


async def test_what_it_cannot_do_is_refused(embedding_server: VllmServer, embedder: EngineWorker) -> None:
    with pytest.raises(Unsupported):
        await embedder.generate(prompt="x")
    with pytest.raises(ContextOverflow):
        await embedder.embed([[65] * (embedder.capabilities.context_length + 1)])
    with pytest.raises(InvalidRequest):
        await embedder.embed([[10**6]])
    assert embedder.status.engine_alive
    task = asyncio.create_task(embedder.embed([[65] * 2000] * 20))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(embedding_server.settle)
    assert len((await embedder.embed("x")).vectors) == 1
