"""The remote engine under the contract: in front of our own server, and of llama.cpp's, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from contract.filling import filling_gguf
from contract.llamacpp_server import LlamaCppServer, running
from contract.rigs import narrowed, started
from contract.shallow import shallow_gguf
from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.remote.engine import UPSTREAM, RemoteEngine
from drivetrain.engines.remote.generation import UpstreamChoice
from drivetrain.store.store import Store
from drivetrain.worker.worker import EngineWorker
from probe import engine_of
from server.serving import Served, fake, filling, serving


class RemoteRig:
    """The fake engine behind our own server: token ids over `/v1/completions`."""

    name = "remote"
    seeded = True
    exact = True

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        unsupported = settings.pop("unsupported", frozenset())
        engine = narrowed(RemoteEngine, unsupported) if unsupported else RemoteEngine()
        async with self.upstream(infill=settings.pop("infill", False)) as reference:
            spec = ModelSpec(name="far", path=Path(), format=WeightsFormat.NONE, options={UPSTREAM: reference})
            async with started(engine, spec, settings) as worker:
                yield worker
            assert not engine.health().alive

    @asynccontextmanager
    async def upstream(self, *, infill: bool) -> AsyncIterator[str]:
        """Started off the event loop; idle before it is stopped."""
        server = serving((filling if infill else fake)(repeat=True, step_delay_s=0.001))
        served: Served = await asyncio.to_thread(server.__enter__)
        try:
            yield f"{served.base}/v1#{served.model}"
            await asyncio.to_thread(served.settle)
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)

    def idle(self, worker: EngineWorker) -> bool:
        return not self._engine(worker).busy

    def steps(self, worker: EngineWorker) -> int:
        return self._engine(worker).steps_run

    @contextlib.contextmanager
    def fault(self, worker: EngineWorker, at_step: int, error: BaseException) -> Iterator[None]:
        """Each choice fails as it hears its token number `at_step`; where it reads late, an event has several."""
        heard: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        hear = UpstreamChoice._hear

        async def fail(choice: Any, event: Any, reader: Any) -> None:
            if not _tells_of_the_prompt(event):
                heard[choice] = heard.get(choice, 0) + max(1, _num_tokens(event))
                if heard[choice] > at_step:
                    raise error
            await hear(choice, event, reader)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(UpstreamChoice, "_hear", fail)
            yield

    def _engine(self, worker: EngineWorker) -> RemoteEngine:
        engine = engine_of(worker)
        assert isinstance(engine, RemoteEngine)
        return engine


class RemoteLlamaCppRig(RemoteRig):
    """Four layers of the real small model behind llama.cpp's own server: token ids over `/completion`. One server for
    all workers, and another for those that fill in the middle."""

    name = "remote-llamacpp"
    exact = False

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._servers: dict[bool, LlamaCppServer] = {}

    @asynccontextmanager
    async def upstream(self, *, infill: bool) -> AsyncIterator[str]:
        server = self._servers.get(infill)
        if server is None:
            server = self._servers[infill] = await asyncio.to_thread(self._start, infill=infill)
        yield f"{server.url}#smollm2"
        await asyncio.to_thread(server.settle)

    def _start(self, *, infill: bool) -> LlamaCppServer:
        path = shallow_gguf(Store().pull("smollm2-135m").path)
        return self._stack.enter_context(running(self._stack.enter_context(filling_gguf(path)) if infill else path))

    def close(self) -> None:
        self._stack.close()


def _tells_of_the_prompt(event: Any) -> bool:
    choices = event.get("choices", ())
    return "prompt_progress" in event or any("prompt_token_ids" in c and not c.get("token_ids") for c in choices)


def _num_tokens(event: Any) -> int:
    return sum(len(told.get("token_ids") or ()) for told in event.get("choices", ())) or len(event.get("tokens") or ())
