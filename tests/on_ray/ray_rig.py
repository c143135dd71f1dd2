"""An engine in a replica, under the contract through a deployment handle: one deployment an engine, for all workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from ray import serve

from contract.rigs import FakeRig, LlamaCppRig, Rig
from drivetrain.scale.ray.handle import HandleWorker
from drivetrain.scale.ray.plan import RUNTIME
from drivetrain.scale.ray.replica import Replica
from drivetrain.worker.worker import EngineWorker
from probe import runs_of


class SteadyRig(FakeRig):
    """Its steps take as long as those of a small model: what crosses to it and back takes less than one."""

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[EngineWorker]:
        async with super().open(**settings) as worker:
            engine = self._engine(worker)
            engine.script = replace(engine.script, step_delay_s=0.01)
            yield worker


THREAD = ThreadPoolExecutor(1)
RIGS: dict[str, Callable[[], Rig]] = {
    "fake": SteadyRig,
    "fake-by-calls": SteadyRig,
    "llamacpp": partial(LlamaCppRig, whole=True),
}
"""Events go over a link of ours, and as Ray's own items where there can be none."""


class RigReplica(Replica):
    """A replica whose worker is opened by a rig, and which answers what the suite asks a rig."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.name, {})
        self._rig = rig
        self._stack = AsyncExitStack()
        self._faults = ExitStack()

    async def open(self, settings: dict[str, Any]) -> None:
        self._worker = await self._stack.enter_async_context(self._rig.open(**settings))

    async def close(self) -> None:
        await self._stack.aclose()

    async def probe(self) -> tuple[bool, int, int]:
        """Whether the engine is idle, its steps, and the requests that the worker still holds."""
        return self._rig.idle(self.worker), self._rig.steps(self.worker), len(runs_of(self.worker))

    async def tokenizer(self, name: str, *arguments: Any, **named: Any) -> Any:
        member = getattr(self.worker.info.tokenizer, name)
        return member(*arguments, **named) if callable(member) else member

    async def begin_fault(self, at_step: int, error: BaseException) -> None:
        self._faults.enter_context(self._rig.fault(self.worker, at_step, error))

    async def end_fault(self) -> None:
        self._faults.close()


class Bench:
    """The deployment: replicas by number in one process, since a process for each would take minutes."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._replicas: list[RigReplica] = []

    async def open(self, settings: dict[str, Any]) -> int:
        replica = RigReplica(RIGS[self._engine]())
        await replica.open(settings)
        self._replicas.append(replica)
        return len(self._replicas) - 1

    async def call(self, number: int, method: str, *arguments: Any, **named: Any) -> Any:
        return await getattr(self._replicas[number], method)(*arguments, **named)

    async def stream(self, number: int, method: str, *arguments: Any) -> AsyncIterator[bytes]:
        async with aclosing(getattr(self._replicas[number], method)(*arguments)) as items:
            async for item in items:
                yield item


class Numbered:
    """The handle of one of them: what is called on it goes to the replica with its number."""

    def __init__(self, handle: Any, number: int, through: str = "call") -> None:
        self._handle = handle
        self._number = number
        self._through = through

    def options(self, *, stream: bool) -> Numbered:
        assert stream
        return Numbered(self._handle.options(stream=True), self._number, "stream")

    def __getattr__(self, method: str) -> Any:
        return NumberedMethod(getattr(self._handle, self._through), self._number, method)


class NumberedMethod:
    def __init__(self, remote: Any, number: int, method: str) -> None:
        self._remote = remote
        self._to = (number, method)

    def remote(self, *arguments: Any, **named: Any) -> Any:
        return self._remote.remote(*self._to, *arguments, **named)


def now(method: Any, *arguments: Any, **named: Any) -> Any:
    """The suite asks some things without awaiting, and Ray does not answer such calls on an event loop."""
    return THREAD.submit(lambda: method.remote(*arguments, **named).result()).result()


class FarTokenizer:
    """That of the replica: the suite compares with what it says."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    @property
    def special_strings(self) -> Any:
        return now(self._replica.tokenizer, "special_strings")

    def id_of(self, token: str) -> Any:
        return now(self._replica.tokenizer, "id_of", token)

    def decode(self, ids: Any, **named: Any) -> Any:
        return now(self._replica.tokenizer, "decode", ids, **named)


class RigWorker(HandleWorker):
    """Knows its handle, for what only a rig asks."""

    def __init__(self, handle: Numbered, name: str, host: str) -> None:
        super().__init__(handle, name, host=host)
        self.replica: Any = handle
        self.info = SimpleNamespace(tokenizer=FarTokenizer(handle))


class RayRig:
    """`remote` in the name: what runs the model is another process, which the suite makes allowance for."""

    seeded = True

    def __init__(self, engine: str) -> None:
        self.exact = engine.startswith("fake")
        self.name = "fake" if self.exact else f"remote-{engine}"
        self._public = "fake" if self.exact else "smollm2"
        self.by_calls = engine.endswith("by-calls")
        self._host = "" if self.by_calls else "127.0.0.1"
        options = {"num_cpus": 0, "runtime_env": {"env_vars": RUNTIME}}
        deployment = serve.deployment(Bench, name="bench", max_ongoing_requests=300, ray_actor_options=options)
        self._handle = serve.run(deployment.bind(engine), name=engine, route_prefix=None)

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[RigWorker]:
        number = now(self._handle.open, settings)
        worker = RigWorker(Numbered(self._handle, number), self._public, self._host)
        worker.start()
        await worker.ready()
        try:
            yield worker
        finally:
            await worker.stop()
            now(worker.replica.close)

    def idle(self, worker: RigWorker) -> bool:
        idle, _, held = now(worker.replica.probe)
        return bool(idle and not held)

    def steps(self, worker: RigWorker) -> int:
        return int(now(worker.replica.probe)[1])

    @contextlib.contextmanager
    def fault(self, worker: RigWorker, at_step: int, error: BaseException) -> Iterator[None]:
        now(worker.replica.begin_fault, at_step, error)
        try:
            yield
        finally:
            now(worker.replica.end_fault)
