"""One request from admission to its one ending. Everything that must happen exactly once happens here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from drivetrain.core.engine import Engine, EngineInfo, IdLogprobs, PromptStep, RequestHandle, Step, TokenStep
from drivetrain.core.errors import Cancelled, DrivetrainError, EngineFailed, NotReady, bug
from drivetrain.core.events import Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import FinishReason, Metrics, TokenLogprob, Usage
from drivetrain.core.stats import Stats
from drivetrain.core.worker import EventSink
from drivetrain.worker.admission import ATTEMPTS, Admission, Slot, Suspicion, Ticket
from drivetrain.worker.echo import EchoFirst
from drivetrain.worker.lifecycle import Lifecycle
from drivetrain.worker.output import Output
from drivetrain.worker.prepare import Prepared, Preparer
from drivetrain.worker.rankers import Ranker
from drivetrain.worker.receipts import ReceiptMaker

_log = logging.getLogger(__name__)


class Host(Protocol):
    """The worker, as its runs see it. Engine, preparer and gate are the current ones: a restart replaces them."""

    @property
    def stats(self) -> Stats: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def info(self) -> EngineInfo: ...

    @property
    def preparer(self) -> Preparer: ...

    @property
    def receipts(self) -> ReceiptMaker: ...

    @property
    def ranker(self) -> Ranker | None: ...

    @property
    def admission(self) -> Admission: ...

    def engine_failed(self) -> None:
        """Called if a run meets a failure of the engine that does not end the run."""
        ...

    def ended(self, run: Run, error: DrivetrainError | None) -> Metrics:
        """Called exactly once per run, when it ends."""
        ...


class Trace(Protocol):
    """The span of one request."""

    @property
    def context(self) -> Mapping[str, str] | None:
        """Trace headers to send along with the request's work on other servers."""
        ...

    def restarted(self, error: DrivetrainError) -> None:
        """The request starts again on the next engine."""
        ...

    def close(self, run: Run, error: DrivetrainError | None) -> None: ...


class Run(Lifecycle):
    """Takes the engine's steps, gives events to its sink, and ends with the first of: finish, error, interrupt.

    Its task lasts from `start` until the engine has the request. The slot follows the engine, not the reader: it is
    free once the engine says that the request holds nothing any more.
    """

    def __init__(
        self,
        request: GenerateRequest,
        sink: EventSink,
        *,
        request_id: str,
        model: str,
        host: Host,
        trace: Trace,
        timeout_s: float,
        stream_interval: int,
    ) -> None:
        super().__init__(request, sink, request_id=request_id, model=model, timeout_s=timeout_s)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.told = False
        self._host = host
        self._info = host.info
        self._receipts = host.receipts
        self._stats = host.stats
        self._trace = trace
        self._interval = stream_interval
        self._output: Output | None = None
        self._start_given = False
        self._attempts = 1
        self._is_suspect = False
        self._prepared: Prepared | None = None
        self._slot: Slot | None = None
        self._handle: RequestHandle | None = None
        self._began = False
        self._starting: asyncio.Task[None] | None = None
        self._free = asyncio.Event()

    # For the caller

    def start(self) -> None:
        """Begin the work, once. Does nothing if the run has already ended."""
        if not self._began and not self.ended:
            self._launch(self._host.admission.enter)

    async def released(self) -> None:
        """Wait until the engine and the slot no longer hold this request."""
        if self._began:
            await self._free.wait()

    @property
    def usage(self) -> Usage:
        output = self._output
        num_tokens, num_reasoning = (output.num_tokens, output.num_reasoning) if output is not None else (0, 0)
        return Usage(self.prompt_tokens, num_tokens, self.cached_tokens, self.told, num_reasoning)

    # The way to the engine

    def _launch(self, enter: Callable[[], Ticket]) -> None:
        self._began = True
        self._starting = asyncio.create_task(self._start(enter), name=f"drivetrain-start-{self.request_id}")
        self._starting.add_done_callback(self._started)

    async def _start(self, enter: Callable[[], Ticket]) -> None:
        """Admit, prepare, hand to the engine."""
        try:
            slot = self._slot = await enter().wait()
            self.times.admitted = time.monotonic()
            if self._attempts == 1:
                self._stats.count_admitted(self.times)
            prepared = await self._host.preparer.prepare(self.request, self.request_id)
            if not slot.is_good:
                raise EngineFailed("the engine failed while preparing the request")
            self.times.prepared = time.monotonic()
            self._hand_over(prepared)
        except EngineFailed as exc:
            if not self._start_again(exc):
                self._end_by(exc)
        except NotReady as exc:
            # A suspect that finds no engine here must not be taken for one that has none of it, and be sent elsewhere.
            self._end_by(EngineFailed(f"the engine failed on it; {exc.message}") if self._is_suspect else exc)
        except BaseException as exc:
            if not self._end_by(exc):
                raise

    def _started(self, task: asyncio.Task[None]) -> None:
        """Called also if the task was cancelled before it ran at all."""
        if task is self._starting:
            self._starting = None  # its exception would keep this run and the prompt alive
            if self._handle is None and not self._free.is_set():
                self._let_go()

    @property
    def may_start_again(self) -> bool:
        """Whether nobody would notice: nothing was given out, and there is an attempt left."""
        is_empty = self._output is None or self._output.is_empty
        return not self.ended and is_empty and self._attempts < ATTEMPTS

    def _start_again(self, error: EngineFailed) -> bool:
        """Queue for the engine that replaces the failed one, ahead of requests that never ran. False if it cannot."""
        slot, admission = self._slot, self._host.admission
        if slot is None or not self.may_start_again or not admission.goes_on(slot, error):
            return False
        _log.warning("restarting %s on another engine: %s", self.request_id, error.message)
        slot.release()
        self._host.engine_failed()
        self._trace.restarted(error)
        self._attempts += 1
        if self._prepared is not None:
            self._prepared.let_go()
        suspicion = self._suspicion
        self._is_suspect |= suspicion is not Suspicion.NONE
        self._handle = self._slot = self._prepared = self._output = self.collected = None
        self.times.admitted = self.times.prepared = None
        self._launch(partial(admission.enter_again, suspicion))
        return True

    @property
    def _suspicion(self) -> Suspicion:
        if self.times.prepared is None or self._prepared is None:
            return Suspicion.NONE
        request = self._prepared.request
        is_grave = request.grammar is not None or request.media is not None
        return Suspicion.GRAVE if is_grave else Suspicion.LIGHT

    def _hand_over(self, prepared: Prepared) -> None:
        self._prepared, self._info, self.truncated_tokens = prepared, self._host.info, prepared.truncated
        self._receipts = self._host.receipts
        request = prepared.request
        if request.media is None:
            self._begin(request.prompt_ids)
            self._give_events()
        if self.ended:
            self._let_go()
        elif request.max_tokens == 0 and request.prompt_logprobs is None:
            for index in range(len(request.seeds)):  # only an echo, which needs no engine
                self.take(TokenStep(index, (), None, FinishReason.LENGTH))
            self.close(None)
        else:
            if (context := self._trace.context) is not None:
                request = replace(request, trace_context=context)
            sink = self if request.prompt_logprobs is None else EchoFirst(self)
            attempt = self._attempts
            handle = self._host.engine.generate(request, sink)
            if attempt == self._attempts and not self._free.is_set():  # else `generate` itself closed it
                self._handle = handle

    def _let_go(self) -> None:
        self._handle = None
        if self._prepared is not None:
            self._prepared.let_go()
        if self._slot is not None:
            self._slot.release()
        self._free.set()

    # For the engine

    def take(self, step: Step) -> None:
        """As in `StepSink`. Any failure here ends this request only; the engine never sees it."""
        if self.ended:
            return
        try:
            self._take_step(step)
        except Exception as exc:  # noqa: BLE001 - translated by `_end_by`
            self._end_by(exc)
        else:
            self._give_events()

    def close(self, error: DrivetrainError | None) -> None:
        """As in `StepSink`."""
        error = error or EngineFailed("the engine ended without finishing the answer")
        if isinstance(error, EngineFailed) and self._start_again(error):
            return
        self._let_go()
        self._end(error)

    def _finish(self, index: int) -> None:
        if self._handle is not None:
            self._handle.finish(index)

    def _abort(self) -> None:
        if self._handle is not None:
            self._handle.abort()

    def _begin(self, prompt_ids: tuple[int, ...]) -> None:
        """The prompt is known; with media, only once the engine's processor has expanded it."""
        assert self._prepared is not None
        self._prepared.let_go()
        self.prompt_tokens = len(prompt_ids)
        self.prompt_token_ids = prompt_ids
        output = self._output = Output(self._prepared, prompt_ids, self._info, interval=self._interval)
        self.collected = output.collected
        if not self._start_given:
            self._start_given = True
            truncated, grammar = self.truncated_tokens, self._prepared.grammar
            started = Started(self.request_id, self.model, self.prompt_tokens, truncated, prompt_ids, grammar)
            self._stats.count_started(started)
            output.events.insert(0, started)

    def _take_step(self, step: Step) -> None:
        if isinstance(step, PromptStep):
            self._take_prompt(step)
        elif self._output is None:
            raise EngineFailed("the engine returned tokens before it reported the prompt")
        else:
            self._take_tokens(self._output, step)

    def _take_prompt(self, step: PromptStep) -> None:
        self.cached_tokens = step.cached_tokens
        if self._output is None and step.token_ids is not None:
            self._begin(step.token_ids)
        if step.num_tokens is not None:
            self.prompt_tokens, self.told = step.num_tokens, True

    def _take_tokens(self, output: Output, step: TokenStep) -> None:
        before = output.num_open
        if number := output.take(step):
            if self._attempts > 1 and self._slot is not None:
                self._slot.prove()
            self._stats.count_tokens(self.times, step.index, number)
        if output.num_open == 0 and before:
            self._complete(output)
        elif output.num_open < before and step.reason is None:
            self._loop.call_soon(self._finish, step.index)

    def _complete(self, output: Output) -> None:
        """All choices have ended. The engine may still be working on one that our own stop matcher ended; `_note` has
        that aborted, but later: the engine may be in the middle of handing on its steps.
        """
        if self.request.receipt is not None:  # before the end: should this fail, the request does
            assert self._prepared is not None
            self.receipt = self._receipts.make(
                self.request,
                self._prepared,
                request_id=self.request_id,
                prompt_ids=self.prompt_token_ids or (),
                choices=self.choices,
            )
        self._end(None)
        output.events.append(Finished(self.usage, self.metrics, self.receipt))

    def spell_prompt(self, logprobs: Sequence[IdLogprobs]) -> Iterator[TokenLogprob]:
        """As in `Echoing`."""
        assert self._output is not None
        return self._output.spell_prompt(logprobs)

    def take_echo(self, entries: tuple[TokenLogprob, ...], end: int | None) -> None:
        """As in `Echoing`."""
        assert self._output is not None
        self._output.take_echo(entries, end)
        self._give_events()

    def fail(self, exc: Exception) -> None:
        """As in `Echoing`."""
        self._end_by(exc)

    def _give_events(self) -> None:
        self._give(self._rest())

    def _rest(self) -> list[Event]:
        if self._output is None:
            return []
        events, self._output.events = self._output.events, []
        return events

    # Endings

    def _end_by(self, exc: BaseException) -> bool:
        """End the request by this exception. False: it concerns more than this request, so it must be raised on."""
        if isinstance(exc, DrivetrainError):
            self._end(exc)
        elif isinstance(exc, asyncio.CancelledError):
            self._end(Cancelled("the request was cancelled"))
            return False
        elif isinstance(exc, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            self._end(Cancelled("the program is exiting"))
            return False
        else:
            self._end(bug(exc))
        return True

    def _note(self, error: DrivetrainError | None) -> None:
        """The engine may be in the middle of handing on its steps, so the abort comes later."""
        self._loop.call_soon(self._abort)
        try:
            if self._output is not None and error is not None:
                self._output.flush()
        finally:
            try:
                self.metrics = self._host.ended(self, error)
            finally:
                self._trace.close(self, error)

    def _leave(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
