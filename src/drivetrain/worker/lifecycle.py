"""What every request for text has, wherever it runs: a deadline, interrupts, one ending for its sink, and a result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from drivetrain.core.errors import Cancelled, DeadlineExceeded, DrivetrainError
from drivetrain.core.events import Event
from drivetrain.core.receipt import Receipt
from drivetrain.core.request import GenerateRequest
from drivetrain.core.results import Choice, FinishReason, Metrics, Partial, Result, Usage
from drivetrain.core.stats import Times
from drivetrain.core.worker import EventSink
from drivetrain.worker.output import Collected

_log = logging.getLogger(__name__)


class Lifecycle(ABC):
    """Subclasses do the work and call `_give` with events and `_end` with what ended it. All on one event loop."""

    def __init__(
        self, request: GenerateRequest, sink: EventSink, *, request_id: str, model: str, timeout_s: float
    ) -> None:
        self.request = request
        self.sink = sink
        self.request_id = request_id
        self.model = model
        self.ended = False
        self.times = Times()
        self.metrics = Metrics()
        self.prompt_token_ids: tuple[int, ...] | None = None
        self.truncated_tokens = 0
        self.receipt: Receipt | None = None
        self.collected: Collected | None = None
        """None until the prompt is known."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s, self._expire, timeout_s)

    # What the caller does

    def cancel(self, why: str) -> None:
        self.interrupt(Cancelled(why))

    def interrupt(self, error: DrivetrainError) -> None:
        """End the request from outside, at once and without waiting. Nothing happens if it has ended."""
        if not self.ended:
            self._end(error)
            self._leave()

    def forget(self) -> None:
        """The reader is gone for good. May be called from any thread, as the garbage collector does."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everything is over
            self._loop.call_soon_threadsafe(self.cancel, "the reader went away")

    # What came of it

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """So far; whole once it has ended."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.collected.choices if self.collected is not None else ()

    @property
    def finish_reasons(self) -> list[FinishReason]:
        return self.collected.finish_reasons if self.collected is not None else []

    def result(self) -> Result:
        return Result(
            request_id=self.request_id,
            model=self.model,
            choices=self.choices,
            usage=self.usage,
            metrics=self.metrics,
            prompt_token_ids=self.prompt_token_ids,
            truncated_tokens=self.truncated_tokens,
            receipt=self.receipt,
        )

    # What the subclass does

    @abstractmethod
    def _note(self, error: DrivetrainError | None) -> None:
        """Count, log and trace the ending. Called once; nothing more may be computed for the request."""

    @abstractmethod
    def _leave(self) -> None:
        """It was interrupted: stop what still works for it."""

    def _rest(self) -> Sequence[Event]:
        """Events that the sink was not given before it failed."""
        return ()

    # Events and the ending

    def _give(self, events: Sequence[Event]) -> None:
        """A sink that fails has no use for the rest."""
        if not events:
            return
        try:
            self.sink.take(events)
        except Exception:  # noqa: BLE001 - whoever reads must not break the engine's step
            _log.exception("the reader of the answer to %s failed", self.request_id)
            self.cancel("the reader of the answer failed")

    def _expire(self, timeout_s: float) -> None:
        self.interrupt(DeadlineExceeded(f"the request timed out after {timeout_s:g} seconds"))

    def _end(self, error: DrivetrainError | None) -> None:
        """The one place that every request passes exactly once; only the first ending counts.

        Free first, then tell: whatever goes wrong in the telling, nothing is held and the error stands.
        """
        if self.ended:
            return
        self.ended = True
        self.times.ended = time.monotonic()
        self._timer.cancel()
        try:
            self._note(error)
        except Exception:  # noqa: BLE001 - whoever looks on must not take an ending away
            _log.exception("a request observer failed")
        if error is None:
            return
        error.request_id, error.partial = self.request_id, Partial(self.choices, self.usage)
        error.__traceback__ = None  # whoever keeps the error would keep all frames of this request, and its prompt
        self._give(self._rest())
        try:
            self.sink.fail(error)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("the reader of the answer to %s failed", self.request_id)
