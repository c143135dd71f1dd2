"""One request from admission to its one ending. Everything that must happen exactly once happens here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from drivetrain.core.engine import Engine, EngineInfo, EngineStream, PromptStep, Step
from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError, EngineFailed
from drivetrain.core.events import Delta, Event, Finished, Started
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason, Metrics, Partial, Usage
from drivetrain.core.stats import Stats
from drivetrain.text.choice import ChoiceText, echo_entries
from drivetrain.worker.admission import Admission, Ticket
from drivetrain.worker.collected import Collected, finish_reasons
from drivetrain.worker.echo import NothingToSample
from drivetrain.worker.prepare import Prepared, Preparer

T = TypeVar("T")

_log = logging.getLogger(__name__)

Hear = Callable[[Sequence[Event]], bool]
"""Takes events that came together; False if that is enough for now."""


class Observer(Protocol):
    """Told once how each request ended; `stats` is what its tokens count in."""

    @property
    def stats(self) -> Stats: ...

    def ended(self, run: Run, error: DrivetrainError | None) -> Metrics: ...


class Trace(Protocol):
    """The span of one request."""

    @property
    def context(self) -> Mapping[str, str] | None:
        """Trace headers for what is done for this request elsewhere."""
        ...

    def close(self, run: Run, error: DrivetrainError | None) -> None: ...


@dataclass(slots=True)
class Times:
    """`time.monotonic()` values; `wall` is the time of day at the start."""

    entered: float
    wall: float
    admitted: float | None = None
    prepared: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None


class Run:
    """Pulled by one reader through `next_event`; ended by whichever comes first of finish, error and `interrupt`.

    The slot follows the engine, not the reader: it is free once the engine says that the request holds nothing.
    """

    def __init__(
        self,
        request: GenerateRequest,
        *,
        request_id: str,
        model: str,
        engine: Engine,
        info: EngineInfo,
        admission: Admission,
        preparer: Preparer,
        observer: Observer,
        trace: Trace,
        timeout_s: float,
        stream_interval: int,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.model = model
        self.times = Times(time.monotonic(), time.time())
        self.last_read = self.times.entered
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.told = False
        self.truncated = 0
        self.prompt_token_ids: tuple[int, ...] | None = None
        self.metrics = Metrics()
        self._engine = engine
        self._info = info
        self._admission = admission
        self._preparer = preparer
        self._observer = observer
        self._stats = observer.stats
        self._trace = trace
        self._interval = stream_interval
        self._events: deque[Event] = deque()
        self._choices: list[ChoiceText] = []
        self._collected: list[Collected] = []
        self._waiting: dict[int, Delta] = {}
        self._open = 0
        self._ticket: Ticket | None = None
        self._stream: EngineStream | None = None
        self._begun = False
        self._error: DrivetrainError | None = None
        self._ended = False
        self._reading = False
        self._preparing: asyncio.Future[Any] | None = None
        self._prepared: Prepared | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s, self._expire, timeout_s)

    # What the reader does

    async def next_event(self) -> Event:
        """The next event, `StopAsyncIteration` after the last one, or the error that ended the request."""
        self._begin_reading()
        try:
            while not self._events:
                if self._over():
                    raise StopAsyncIteration
                try:
                    if self._stream is None:
                        await self._start()
                    else:
                        self._take_step(await anext(self._stream))
                except BaseException as exc:
                    if not self._end_by(exc):
                        raise
            return self._events.popleft()
        finally:
            self._reading = False

    async def follow(self, hear: Hear) -> None:
        """Hand events on where they arise, until the last one or until `hear` returns False."""
        self._begin_reading()
        wanted = True
        failure: BaseException | None = None
        broken: BaseException | None = None

        def hand_on() -> bool:
            nonlocal wanted, broken
            if self._events and wanted:
                self.last_read = time.monotonic()
                events = tuple(self._events)
                self._events.clear()
                try:
                    wanted = hear(events)
                except BaseException as exc:  # noqa: BLE001 - nor of this
                    wanted, broken = False, exc
            return wanted

        def take(step: Step) -> bool:
            nonlocal failure
            try:
                self._take_step(step)
            except BaseException as exc:  # noqa: BLE001 - the engine must not hear of it: it is raised to the reader
                failure = exc
                return False
            return hand_on() and not self._ended

        try:
            while hand_on() and not self._over():
                try:
                    if self._stream is None:
                        await self._start()
                    else:
                        await self._stream.follow(take)
                        if failure is not None:
                            raise failure
                except BaseException as exc:
                    if not self._end_by(exc):
                        raise
        finally:
            self._reading = False
        if broken is not None:
            self.interrupt(Cancelled("what reads the answer failed"))
            raise broken

    def _begin_reading(self) -> None:
        if self._reading:
            raise RuntimeError("one answer has one reader, and it is already waiting for an event")
        self._reading = True
        self.last_read = time.monotonic()

    def _over(self) -> bool:
        """Whether no event will come any more. Raises the error that ended the request."""
        if self._error is not None:
            raise self._error
        return self._ended

    def interrupt(self, error: DrivetrainError) -> None:
        """End the request from outside, at once and without waiting. Nothing happens if it has ended."""
        if self._ended:
            return
        self._fail(error)
        if self._preparing is not None:
            self._preparing.cancel()
        if self._ticket is not None:
            self._ticket.give_up(error)

    def forget(self) -> None:
        """The reader is gone for good. May be called from any thread, as the garbage collector does."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everything is over
            self._loop.call_soon_threadsafe(self.interrupt, Cancelled("the reader went away"))

    async def released(self) -> None:
        """Wait until the engine and the slot are free of this request."""
        if self._stream is not None:
            await self._stream.aclose()

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def unread(self) -> int:
        return len(self._events) + (self._stream.unread if self._stream is not None else 0)

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, sum(c.num_tokens for c in self._choices), self.cached_tokens, self.told)

    @property
    def choices(self) -> tuple[Choice, ...]:
        wanted = self._wants_logprobs
        return tuple(collected.choice(i, logprobs=wanted) for i, collected in enumerate(self._collected))

    @property
    def finish_reasons(self) -> list[FinishReason]:
        return finish_reasons(self._collected)

    # The way of a request

    def _end_by(self, exc: BaseException) -> bool:
        """End the request by what was raised on its way. False: it is not the request's alone, and goes on."""
        if isinstance(exc, StopAsyncIteration):
            self._fail(EngineFailed("the engine ended without finishing the answer"))
        elif isinstance(exc, DrivetrainError):
            self._fail(exc)
        elif isinstance(exc, asyncio.CancelledError):
            self.interrupt(Cancelled("the reader was cancelled"))
            return False
        elif isinstance(exc, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            self.interrupt(Cancelled("the program is ending"))
            return False
        else:  # a bug, ours or a library's, is one typed ending
            error = EngineFailed(f"the worker failed on this request: {type(exc).__name__}")
            error.__cause__ = exc
            self._fail(error)
        return True

    async def _start(self) -> None:
        """Admit, prepare, hand to the engine. Gives the first event, and the echo if there is one."""
        self._ticket = self._admission.enter()
        slot = await self._ticket.wait()
        self._ticket = None
        self.times.admitted = time.monotonic()
        try:
            self._over()  # it may have ended between the grant of its slot and now
            self._stats.queue_s.observe(self.times.admitted - self.times.entered)
            prepared = await self._prepare()
            self._stream = self._engine_stream(prepared)
        except BaseException:
            slot.release()
            raise
        self._stream.on_released(slot.release)
        self.times.prepared = time.monotonic()
        self._prepared = prepared
        self.truncated = prepared.truncated
        if prepared.request.media is None:
            self._begin(prepared.request.prompt_ids)

    async def _prepare(self) -> Prepared:
        prepared = self._preparer.at_once(self.request, self.request_id)
        if prepared is None:
            work = asyncio.create_task(self._preparer.prepare(self.request, self.request_id))
            prepared = await self._unless_interrupted(work)
        if not self._engine.health().active:
            await self._unless_interrupted(self._preparer.burst.over())
        return prepared

    def _engine_stream(self, prepared: Prepared) -> EngineStream:
        if prepared.request.max_tokens == 0 and prepared.request.prompt_logprobs is None:
            return NothingToSample(len(prepared.request.seeds))
        if (context := self._trace.context) is not None:
            return self._engine.generate(replace(prepared.request, trace_context=context))
        return self._engine.generate(prepared.request)

    def _begin(self, prompt_ids: tuple[int, ...]) -> None:
        """The prompt is known: with media only once the engine's processor has expanded it."""
        prepared = self._prepared
        assert prepared is not None
        self._begun = True
        self.prompt_tokens = len(prompt_ids)
        self.prompt_token_ids = prompt_ids
        request, tokenizer = prepared.request, self._info.tokenizer
        prefix = () if self._info.encoder_decoder else prompt_ids
        self._open = len(request.seeds)
        for index in range(self._open):
            self._choices.append(
                ChoiceText(
                    index,
                    tokenizer=tokenizer,
                    detokenizer=tokenizer.detokenizer(prefix),
                    rules=prepared.rules,
                    logprobs=request.logprobs is not None,
                    offset=len(prepared.prompt_text),
                )
            )
            self._collected.append(Collected())
        self._events.append(
            Started(self.request_id, self.model, self.prompt_tokens, self.truncated, self.prompt_token_ids)
        )
        if prepared.prompt_text and request.prompt_logprobs is None:
            self._echo(None)

    def _take_step(self, step: Step) -> None:
        if self._ended:
            return
        if isinstance(step, PromptStep):
            self._take_prompt(step)
            return
        if not self._begun:
            raise EngineFailed("the engine gave tokens before it told the prompt")
        choice = self._choices[step.index]
        if choice.finished:
            return
        self.times.last_token = now = time.monotonic()
        before = choice.num_tokens
        delta = choice.feed(step.token_ids, step.logprobs, step.pieces)
        if delta is not None:
            self._give(delta)
        if number := choice.num_tokens - before:
            self._count_tokens(step.index, number, now)
        if step.reason is not None and (rest := choice.finish(step.reason)) is not None:
            self._give(rest)
        if choice.finished is not None:
            self._finish_choice(choice, by_engine=step.reason is not None)

    def _take_prompt(self, step: PromptStep) -> None:
        self.cached_tokens = step.cached_tokens
        if not self._begun and step.token_ids is not None:
            self._begin(step.token_ids)
        if step.num_tokens is not None:
            self.prompt_tokens, self.told = step.num_tokens, True
        if step.logprobs is not None:
            self._echo(step)

    def _count_tokens(self, index: int, number: int, now: float) -> None:
        stats, collected = self._stats, self._collected[index]
        stats.completion_tokens += number
        before, collected.last_token = collected.last_token, now
        if before is not None:
            stats.between_tokens_s.observe((now - before) / number, number)
        elif self.times.first_token is None:
            self.times.first_token = now
            stats.first_token_s.observe(now - self.times.entered)
            stats.prefill_s.observe(now - (self.times.admitted or now))
            stats.recent_first_token_s.append(now - self.times.entered)

    def _finish_choice(self, choice: ChoiceText, *, by_engine: bool) -> None:
        assert choice.finished is not None
        assert self._stream is not None
        self._flush(choice.index)
        self._collected[choice.index].finished = choice.finished
        self._events.append(choice.finished)
        self._open -= 1
        if self._open == 0:
            self._complete()
        elif not by_engine:
            self._loop.call_soon(self._stream.finish, choice.index)

    def _complete(self) -> None:
        """All choices ended. The engine may still hold a last step of one that our matcher ended: abort that.

        Not here and now, nor the end of one choice: the engine may be in the middle of handing its steps on.
        """
        assert self._stream is not None
        self._settle(None)
        self._loop.call_soon(self._stream.abort)
        self._events.append(Finished(self.usage, self.metrics))

    # Text on its way out

    def _give(self, delta: Delta) -> None:
        """Send a delta, or gather it with its neighbours up to the stream interval."""
        if not self._waiting and len(delta.token_ids) >= self._interval:
            self._send(delta)
            return
        waiting = self._waiting.pop(delta.index, None)
        if waiting is not None:
            delta = _joined(waiting, delta)
        if len(delta.token_ids) < self._interval:
            self._waiting[delta.index] = delta
        else:
            self._send(delta)

    def _flush(self, index: int) -> None:
        waiting = self._waiting.pop(index, None)
        if waiting is not None:
            self._send(waiting)

    def _send(self, delta: Delta) -> None:
        collected = self._collected[delta.index]
        collected.texts.append(delta.text)
        collected.token_ids += delta.token_ids
        if delta.logprobs:
            collected.logprobs += delta.logprobs
        self._events.append(delta)

    def _echo(self, step: PromptStep | None) -> None:
        prepared = self._prepared
        assert prepared is not None
        logprobs = None
        if step is not None and step.logprobs is not None:
            ids, tokenizer = prepared.request.prompt_ids, self._info.tokenizer
            logprobs = tuple(echo_entries(tokenizer, prepared.prompt_text, ids, step.logprobs))
        for index in range(len(self._choices)):
            self._send(Delta(index, prepared.prompt_text, (), logprobs))

    # Endings

    def _expire(self, timeout_s: float) -> None:
        self.interrupt(DeadlineExceeded(f"the request was not done within its {timeout_s:g} seconds"))

    def _fail(self, error: DrivetrainError) -> None:
        """Free first, then tell: whatever goes wrong in the telling, nothing is held and the error stands."""
        if self._ended:
            return
        for index in list(self._waiting):
            self._flush(index)
        self._error = error
        if self._stream is not None:
            self._stream.abort()
        self._settle(error)
        error.request_id, error.partial = self.request_id, Partial(self.choices, self.usage)

    def _settle(self, error: DrivetrainError | None) -> None:
        """The one place that every request passes exactly once."""
        assert not self._ended
        self._ended = True
        self._timer.cancel()
        self.times.ended = time.monotonic()
        try:
            try:
                self.metrics = self._observer.ended(self, error)
            finally:
                self._trace.close(self, error)
        except Exception:  # noqa: BLE001 - whoever looks on must not take an ending away
            _log.exception("what watches the requests failed")

    async def _unless_interrupted(self, work: asyncio.Future[T]) -> T:
        """Wait for `work`, but not past an interruption. What it has begun by then ends by its own limits."""
        self._preparing = work
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to hear of it
        try:
            await asyncio.wait((work,))
        finally:
            self._preparing = None
            work.cancel()
        self._over()
        return work.result()

    @property
    def _wants_logprobs(self) -> bool:
        return self.request.logprobs is not None or self.request.prompt_logprobs is not None


def _joined(first: Delta, second: Delta) -> Delta:
    logprobs = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (first.logprobs or ()) + (second.logprobs or ())
    return Delta(first.index, first.text + second.text, first.token_ids + second.token_ids, logprobs)
