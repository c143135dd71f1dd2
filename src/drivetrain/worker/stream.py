"""The reader's end of a request: events as an async iterator that owns what it reads from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drivetrain.core.errors import Cancelled
from drivetrain.core.events import Event
from drivetrain.core.results import Result
from drivetrain.worker.run import Run


class EventStream:
    """What `Worker.stream` returns: an async iterator of events that owns its request.

    Reading to the end, `aclose()`, leaving an `async with`, an error, cancelling the reading task, forgetting the
    object and not reading for too long all end the request and free what it holds.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def request_id(self) -> str:
        return self._run.request_id

    def result(self) -> Result:
        """Everything so far, as one value; whole once the stream has ended."""
        run = self._run
        return Result(
            request_id=run.request_id,
            model=run.model,
            choices=run.choices,
            usage=run.usage,
            metrics=run.metrics,
            prompt_token_ids=run.prompt_token_ids,
            truncated_tokens=run.truncated,
        )

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        return await self._run.next_event()  # in a frame that holds the stream: nobody else may

    async def follow(self, hear: Callable[[Sequence[Event]], bool]) -> None:
        """The same events, handed to `hear` where they arise, until the last one or until it returns False."""
        await self._run.follow(hear)

    async def aclose(self) -> None:
        """End the request if it runs, and return once its resources are free."""
        self._run.interrupt(Cancelled("the request was closed by its reader"))
        await self._run.released()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        run: Run | None = getattr(self, "_run", None)
        if run is not None and not run.ended:
            run.forget()
