"""Embeddings, from a second server over the same file: llama.cpp pools a whole text in one batch, or generates.

It starts with the first request for one; the weights are mapped, so both share them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.child.process import Launch, ServerProcess


class LlamaCppEmbedder:
    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._process: ServerProcess | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def embed(self, texts: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """One unit vector a text, one text at a time: neighbours cannot touch each other's result."""
        async with self._lock:
            process = await self._started()
            connection = ChildConnection(process.host, process.port, process.key)
            with process.computing():
                return [await self._one(connection, ids) for ids in texts]

    async def close(self) -> None:
        self._closed = True
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def _one(self, connection: ChildConnection, ids: Sequence[int]) -> tuple[float, ...]:
        answer = await connection.ask("POST", "/embeddings", {"content": list(ids), "embd_normalize": 2})
        values = tuple(float(x) for x in answer[0]["embedding"][0])
        norm = sum(x * x for x in values) ** 0.5
        if not 0 < norm < float("inf"):
            raise EngineFailed("the model gave no usable embedding for this text")
        return tuple(x / norm for x in values)

    async def _started(self) -> ServerProcess:
        if self._process is not None and self._process.alive:
            return self._process
        if self._closed:
            raise EngineFailed("the engine is closed")
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
        self._process = ServerProcess(self._launch)
        await self._process.start_async()
        return self._process
