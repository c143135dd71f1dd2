"""The `native` engine: our own decode loop, all requests in one batch, over any causal model of the library."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drivetrain.core.engine import EmbedItem, EngineInfo, EngineRequest, Health, ModelSpec, Progress, StepSink
from drivetrain.core.errors import Cancelled, DrivetrainError, EngineFailed, UnfitEngine
from drivetrain.core.results import NOTHING_COUNTED, DeviceMemory
from drivetrain.engines.base.channel import Ending, StepChannel
from drivetrain.engines.base.spinning import spin_briefly
from drivetrain.engines.base.thread import EngineThread, post
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.checkpoint.settings import CheckpointSettings
from drivetrain.engines.checkpoint.step_threads import StepThreads, keep_to_usable_cores, round_alike
from drivetrain.engines.native.schedule.sequence import Job

if TYPE_CHECKING:
    from drivetrain.engines.native.assembling import Assembled
    from drivetrain.engines.native.compilation import Compilation
    from drivetrain.engines.native.embedding import EmbedCall
    from drivetrain.engines.native.stepper import Output, Stepper

    Order = Callable[[Stepper], Sequence[Output]]


_log = logging.getLogger(__name__)


class NativeEngine:
    """The event loop puts orders into the inbox; the engine's thread carries them out between steps.

    The outputs of a step go to the event loop in one call, for all requests together. The thread runs while there is
    anything to do, and has stopped before the last request is released.
    """

    def __init__(self) -> None:
        self._thread = EngineThread("drivetrain-native")
        self._stepper: Stepper | None = None
        self._device: Any = None
        self._threads = StepThreads(None)
        self._compiling: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[Order] = deque()
        self._lock = threading.Lock()
        self._stepping = False
        self._running: dict[Job | EmbedCall, StepChannel] = {}
        self._requests = 0
        self._closed = False
        self._broken = ""
        self._last_progress = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether the engine's thread has anything to do."""
        return self._stepping

    @property
    def steps_run(self) -> int:
        """Passes through the model, those for embeddings included."""
        return self._stepper.passes_run if self._stepper is not None else 0

    async def load(self, spec: ModelSpec, progress: Progress) -> EngineInfo:
        loop = self._loop = asyncio.get_running_loop()

        def report(what: str, share: float | None) -> None:
            post(loop, lambda: progress(what, share))

        def load() -> Assembled:
            try:
                spin_briefly(os.environ)
                if CheckpointSettings.of(spec.options).yield_cores:
                    round_alike(os.environ)
                keep_to_usable_cores()
                from drivetrain.engines.native.assembling import assemble

                made = assemble(spec, report)
            except Exception as exc:
                error = errors.while_loading(exc, engine="native")
                if isinstance(error, UnfitEngine):
                    errors.free_cached_memory()  # another engine may load the same model next
                raise error from exc
            self._stepper, self._device, self._threads = made.stepper, made.device, made.threads
            return made

        try:
            made = await self._thread.call(load)
            if made.compilation.pending:
                await self._compile(made.compilation, made.stepper, report)
            return made.info
        except BaseException:
            await self.close()
            raise

    async def _compile(self, compilation: Compilation, stepper: Stepper, progress: Progress) -> None:
        """Now if the engine cannot be ready without it, else beside it."""
        from drivetrain.engines.native.model.compiling import CannotCompile, refused

        if not compilation.required:
            self._compiling = asyncio.create_task(self._compile_beside(compilation))
            return
        progress("compiling the steps (once for a model and machine, some minutes)", None)
        try:
            await compilation.make()
            await self._thread.call(lambda: list(compilation.adopting(stepper)))
        except CannotCompile as exc:
            raise refused(str(exc)) from exc

    async def _compile_beside(self, compilation: Compilation) -> None:
        adopting: Iterator[None] | None = None

        def adopt(stepper: Stepper) -> list[Output]:
            nonlocal adopting
            if self._closed:
                return []
            adopting = adopting or compilation.adopting(stepper)
            try:
                next(adopting)
            except StopIteration:
                _log.info("the steps are compiled")
            except Exception as exc:  # noqa: BLE001 - whatever it is, the engine goes on as it was
                _log.warning("the steps stay as they are: %s", exc)
            else:
                self._order(adopt)
            return []

        try:
            await compilation.make()
        except Exception as exc:  # noqa: BLE001 - as above
            _log.warning("the steps stay as they are: %s", exc)
        else:
            if not self._broken:
                self._order(adopt)

    def generate(self, request: EngineRequest, sink: StepSink) -> StepChannel:
        self._requests += 1
        job = Job.of(request, self._requests)
        channel = StepChannel(
            sink,
            on_abort=lambda: self._order(lambda stepper: stepper.abort(job)),
            on_finish=lambda index: self._order(lambda stepper: stepper.finish(job, index)),
        )
        if self._closed or self._stepper is None or self._broken:
            channel.release(EngineFailed(self._broken or "the engine is closed"))
            return channel
        self._running[job] = channel
        self._order(lambda stepper: stepper.add(job))
        return channel

    async def embed(self, items: Sequence[EmbedItem]) -> list[tuple[float, ...]]:
        """The texts share passes that come between the steps of running requests."""
        from drivetrain.engines.native.embedding import EmbedCall

        embedder = self._stepper.embedder if self._stepper is not None else None
        if self._closed or embedder is None or self._broken:
            raise EngineFailed(self._broken or "the engine is closed")
        self._requests += 1
        call = EmbedCall([item.token_ids for item in items], self._requests)
        ending = Ending()
        channel = StepChannel(
            ending, on_abort=lambda: self._order(lambda stepper: embedder.drop(call)), on_finish=lambda index: None
        )
        self._running[call] = channel
        self._order(lambda stepper: embedder.add(call))
        try:
            await ending.wait()
        except asyncio.CancelledError:
            channel.abort()
            with contextlib.suppress(DrivetrainError):
                await ending.wait()  # until no pass uses it
            raise
        if channel.aborted:
            raise Cancelled("the engine was closed before all texts had their vectors")
        return call.vectors

    def memory(self) -> tuple[DeviceMemory, ...]:
        if self._device is None:
            return ()
        from drivetrain.engines.checkpoint.devices import device_memory

        return device_memory(self._device)

    def health(self) -> Health:
        alive = not self._closed and not self._broken and self._thread.alive
        stepper = self._stepper
        return Health(
            alive,
            len(self._running),
            self._last_progress,
            self._broken,
            kv_used=stepper.kv_used if stepper is not None else None,
            kv_blocks=stepper.kv_blocks if stepper is not None else None,
            counts=stepper.counts if stepper is not None else NOTHING_COUNTED,
            threads=self._threads.threads,
        )

    async def close(self) -> None:
        self._closed = True
        for channel in list(self._running.values()):
            channel.abort()
        try:
            if self._compiling is not None:
                self._compiling.cancel()
                await asyncio.wait([self._compiling])
            await self._thread.close()
        finally:  # even if the thread hangs and nobody waits for it any longer
            self._stepper = None
            for channel in list(self._running.values()):
                channel.release()
            self._running.clear()

    def _order(self, order: Order) -> None:
        """Have this done on the thread before its next step."""
        with self._lock:
            self._inbox.append(order)
            if self._stepping:
                return
            self._stepping = True
        self._thread.submit(self._run)

    def _run(self) -> None:
        """On the thread. An exception that leaves a step is a defect of ours: nothing can be trusted after it."""
        stepper = self._stepper
        assert stepper is not None
        try:
            with self._threads.computing():
                self._step_until_idle(stepper)
        except BaseException as exc:  # noqa: BLE001 - the boundary: nobody may wait for a thread that gave up
            error = errors.while_running(exc)
            with self._lock:
                self._stepping = False
            if self._loop is not None:
                post(self._loop, lambda: self._break(error))

    def _step_until_idle(self, stepper: Stepper) -> None:
        while True:
            outputs = self._carry_out_orders(stepper)
            if not stepper.idle:
                self._threads.look()
                outputs += stepper.step()
            if stepper.idle:
                stepper.check_at_rest()
            self._last_progress = time.monotonic()
            with self._lock:
                at_rest = stepper.idle and not self._inbox
                if at_rest:
                    self._stepping = False
            if outputs and self._loop is not None:
                self._hand_over(self._loop, outputs)
            if at_rest:
                return

    def _break(self, error: DrivetrainError) -> None:
        """On the event loop: everything ends with this error, and nothing new starts."""
        self._broken = error.message
        running, self._running = self._running, {}
        for channel in running.values():
            channel.release(errors.again(error))

    def _carry_out_orders(self, stepper: Stepper) -> list[Output]:
        outputs: list[Output] = []
        for _ in range(len(self._inbox)):  # what one of them orders comes after the next step
            outputs += self._inbox.popleft()(stepper)
        return outputs

    def _hand_over(self, loop: asyncio.AbstractEventLoop, outputs: list[Output]) -> None:
        post(loop, lambda: self._deliver(outputs))

    def _deliver(self, outputs: list[Output]) -> None:
        """On the event loop: everything that came of one step."""
        from drivetrain.engines.native.stepper import NewStep

        for output in outputs:
            channel = self._running.get(output.job)
            if channel is None:
                continue
            if isinstance(output, NewStep):
                channel.push(output.step)
            else:
                del self._running[output.job]
                channel.release(output.error)
