"""One request: a choice is one answer of one upstream, and is asked for again elsewhere only before it has begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineRequest, Step, TokenStep
from drivetrain.engines.base.generation import Emit, Generation
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.attempts import attempted
from drivetrain.engines.remote.dialects.base import AnswerReader, Learn
from drivetrain.engines.remote.errors import Broken
from drivetrain.engines.remote.events import events, most_bytes
from drivetrain.engines.remote.pool import Pool, Upstream
from drivetrain.engines.remote.wire import Timeouts, asked


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of the upstreams in an open pool, and what is needed to ask them for it."""

    pool: Pool
    model: str
    key: Key
    timeouts: Timeouts
    learn: Learn
    count_step: Callable[[], None]


class UpstreamChoice:
    def __init__(self, index: int, request: EngineRequest, served: RemoteModel, emit: Emit) -> None:
        self._index = index
        self._request = request
        self._served = served
        self._emit = emit
        self._heard = False

    async def run(self) -> None:
        """Raises what the last attempt raised. Cancelling closes the connection."""
        await attempted(self._served.pool, self._ask, begun=lambda: self._heard)

    async def _ask(self, upstream: Upstream) -> None:
        served, dialect, began = self._served, upstream.dialect, upstream.breaker.openings
        assert dialect is not None
        body = dialect.body(self._request, self._index)
        reader = dialect.reader(self._request, self._index, served.learn)
        async with (
            asked(
                upstream.address,
                "POST",
                dialect.path,
                served.key,
                body,
                timeouts=served.timeouts,
                head_s=served.timeouts.first_s,
                trace_context=self._request.trace_context,
            ) as answer,
            aclosing(events(answer, served.key, served.timeouts, most_bytes(self._request))) as heard,
        ):
            try:
                async for event in heard:
                    if not self._heard:
                        upstream.answered(began)
                    await self._hear(event, reader)
                    if reader.over:
                        return
            except (Broken, OSError):
                if not reader.settled:
                    raise
            for step in reader.close():
                self._emit(step)

    async def _hear(self, event: Mapping[str, Any], reader: AnswerReader) -> None:
        self._heard = True
        self._served.count_step()
        for step in await reader.hear(event):
            self._emit(step)


class RemoteGeneration(Generation):
    """When it has ended, all its connections are closed."""

    def __init__(self, request: EngineRequest, served: RemoteModel, emit: Emit) -> None:
        super().__init__(request, emit)
        self._served = served
        self._counted = 0

    async def run_choice(self, index: int) -> None:
        await UpstreamChoice(index, self._request, self._served, self.emit).run()

    def emit(self, step: Step) -> None:
        """How many tokens the prompt has, which the text tier hears last, is told once all choices have heard it."""
        if isinstance(step, TokenStep) or step.num_tokens is None:
            super().emit(step)
            return
        self._counted += 1
        if self._counted == len(self._request.seeds):
            self._emit(step)
