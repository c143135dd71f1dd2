"""One request over texts that makes no text of them, under the same rules as one that does: one ending, one gate."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from drivetrain.core.engine import Engine, EngineInfo
from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, EngineFailed, bug
from drivetrain.core.results import Embeddings, Ranking
from drivetrain.core.stats import Times
from drivetrain.telemetry.genai import Operation
from drivetrain.worker.admission import ATTEMPTS, Slot, Suspicion
from drivetrain.worker.run import Host
from drivetrain.worker.text_threads import LONG_CHARS, Lane
from drivetrain.worker.tracing import NoTrace, TextsTrace, Traces

T = TypeVar("T")
Item = TypeVar("Item")
Made = TypeVar("Made", bound=Embeddings | Ranking)

TEXTS_A_JOB = 32

_log = logging.getLogger(__name__)


class TextsRun(ABC, Generic[Item, Made]):
    """Ends with what it made, an error, its deadline or an interrupt. Its slot is free once the engine releases it."""

    what: ClassVar[str]
    """What it makes, for messages."""
    phase: ClassVar[str]
    """What the engine does, for traces."""

    def __init__(self, host: Host, trace: TextsTrace | NoTrace) -> None:
        self.times = Times()
        self._host = host
        self._trace = trace
        self._attempts = 1
        self._outcome: Made | BaseException | None = None
        self._ended = asyncio.Event()
        self.work = asyncio.create_task(self._work(), name=f"drivetrain-{self.phase}")
        """Lasts until the engine has released the request."""

    @abstractmethod
    async def _prepare(self, info: EngineInfo) -> Sequence[Item]:
        """The texts as the engine takes them."""

    @abstractmethod
    async def _compute(self, engine: Engine, items: Sequence[Item]) -> Made: ...

    async def result(self, timeout_s: float) -> Made:
        """Returns or raises once the request has ended; then the engine has released it, unless it was interrupted."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"the {self.what} did not finish within {timeout_s:g} seconds") from None
        finally:
            self.work.cancel()
            await self._ended.wait()
            if self.times.admitted is not None:
                self._host.stats.request_s.observe(time.monotonic() - self.times.entered)
        return self._taken()

    def interrupt(self, error: DrivetrainError) -> None:
        """End it at once, without waiting. Does nothing if it has ended."""
        self._end(error)

    @property
    def may_start_again(self) -> bool:
        is_wanted = not self._ended.is_set() and not self.work.cancelling()
        return is_wanted and self._attempts < ATTEMPTS

    def _end(self, outcome: Made | BaseException) -> None:
        if not self._ended.is_set():
            self._outcome = outcome
            self._ended.set()

    def _taken(self) -> Made:
        """Only once: the traceback of a raised outcome holds frames that hold this object."""
        outcome, self._outcome = self._outcome, None
        try:
            assert outcome is not None
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            del outcome

    async def _work(self) -> None:
        try:
            self._end(await self._attempt())
        except asyncio.CancelledError:
            self._end(Cancelled("the request was cancelled"))
        except Exception as exc:  # noqa: BLE001 - `result` raises it
            self._end(exc if isinstance(exc, DrivetrainError) else bug(exc))
        except BaseException as exc:  # noqa: BLE001 - as above
            self._end(exc)

    async def _attempt(self) -> Made:
        admission, enter = self._host.admission, self._host.admission.enter
        self._trace.phase("queue")
        while True:
            slot = await enter().wait()
            try:
                return await self._on(slot)
            except (EngineFailed, Cancelled) as exc:
                if not self.may_start_again or not admission.goes_on(slot, exc):
                    raise
                _log.warning("restarting the %s on another engine: %s", self.what, exc.message)
                self._trace.restarted(exc)
            finally:
                slot.release()
            self._host.engine_failed()
            self._attempts += 1
            suspicion = Suspicion.NONE if self.times.prepared is None else Suspicion.LIGHT
            self.times.admitted = self.times.prepared = None
            enter = partial(admission.enter_again, suspicion)

    async def _on(self, slot: Slot) -> Made:
        host, trace, times = self._host, self._trace, self.times
        engine, info = host.engine, host.info
        times.admitted = time.monotonic()
        if self._attempts == 1:
            host.stats.count_admitted(times)
        trace.phase("prepare")
        items = await self._prepare(info)
        if not slot.is_good:
            raise EngineFailed("the engine failed while preparing the texts")
        times.prepared = time.monotonic()
        trace.phase(self.phase)
        return await self._compute(engine, items)


class TextsRuns:
    """Those of one worker. `engine_ended` is told of each that the engine had, with its error."""

    def __init__(self, traces: Traces, engine_ended: Callable[[DrivetrainError | None], None]) -> None:
        self.open: set[TextsRun[Any, Any]] = set()
        self._traces = traces
        self._engine_ended = engine_ended

    async def made(
        self,
        begin: Callable[[TextsTrace | NoTrace], TextsRun[Any, Made]],
        operation: Operation,
        trace_context: Mapping[str, str] | None,
        timeout_s: float,
    ) -> Made:
        """`begin` makes the run, or raises what can be told without work. Cancelling this call ends the run."""
        trace = self._traces.texts(operation, trace_context)
        run: TextsRun[Any, Made] | None = None
        try:
            run = begin(trace)
            self.open.add(run)
            run.work.add_done_callback(partial(self._let_go, run))
            made = await run.result(timeout_s)
        except BaseException as exc:
            trace.close(None, exc)
            if run is not None and run.times.prepared is not None and isinstance(exc, DrivetrainError):
                self._engine_ended(exc)
            raise
        trace.close(made, None)
        self._engine_ended(None)
        return made

    def _let_go(self, run: TextsRun[Any, Any], work: asyncio.Task[None]) -> None:
        self.open.discard(run)


async def in_jobs(lane: Lane, lengths: Sequence[int], work: Callable[[int], T]) -> list[T]:
    """`work(i)` for texts of these lengths, a few at a time, so that others do not wait for a whole long list."""
    jobs = [partial(_some, work, start, end) for start, end in _jobs(lengths)]
    batches = await lane.run(jobs, admitted=True)
    return [made for batch in batches for made in batch]


def _some(work: Callable[[int], T], start: int, end: int) -> list[T]:
    return [work(i) for i in range(start, end)]


def _jobs(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = chars = 0
    for i, length in enumerate(lengths):
        if i - start >= TEXTS_A_JOB or (i > start and chars + length > LONG_CHARS):
            yield start, i
            start, chars = i, 0
        chars += length
    yield start, len(lengths)
