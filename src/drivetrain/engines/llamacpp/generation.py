"""One request: its choices side by side, each with a slot of its own, legs in and steps out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineRequest, IdLogprobs, PromptStep, Step, TokenStep
from drivetrain.core.errors import EngineFailed, InvalidRequest
from drivetrain.core.results import FinishReason
from drivetrain.engines.llamacpp.connection import Connection
from drivetrain.engines.llamacpp.idle import until_idle
from drivetrain.engines.llamacpp.payload import Leg, completion, leg_seed
from drivetrain.engines.llamacpp.recovery import lost_ids
from drivetrain.engines.llamacpp.slots import Slot, SlotPool
from drivetrain.engines.llamacpp.vocabulary import Vocabulary

OVERSHOOT = 4
"""Ids past a limit that suffice to complete any half character."""

Emit = Callable[[Step], None]


@dataclass(frozen=True, slots=True)
class Served:
    """A running server and what is known of its model."""

    connection: Connection
    vocabulary: Vocabulary
    slots: SlotPool
    count_step: Callable[[], None]
    alive: Callable[[], bool]


class Generation:
    """`run` ends when every choice has ended and every slot is idle; cancelling it does the same, sooner."""

    def __init__(self, request: EngineRequest, served: Served, emit: Emit) -> None:
        self._emit = emit
        self._prompt_told = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._finished: set[int] = set()
        self._choices = [ChoiceRun(i, request, served, self.emit) for i in range(len(request.seeds))]
        banned = request.sampling.suppress_tokens
        self._all_banned = len(set(banned)) >= served.vocabulary.size

    async def run(self) -> None:
        if self._all_banned:
            raise InvalidRequest("the bans of this request leave no token to sample", param="suppress_tokens")
        try:
            async with asyncio.TaskGroup() as group:
                for choice in self._choices:
                    if choice.index not in self._finished:
                        self._tasks[choice.index] = group.create_task(choice.run())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def finish(self, index: int) -> None:
        self._finished.add(index)
        if index in self._tasks:
            self._tasks[index].cancel()

    def emit(self, step: Step) -> None:
        """The first choice that hears of the prompt tells of it."""
        if isinstance(step, PromptStep):
            if self._prompt_told:
                return
            self._prompt_told = True
        elif step.index in self._finished:
            return
        self._emit(step)


class ChoiceRun:
    """The ids of one choice. A leg ends where llama.cpp ends; if the choice does not, another goes on from there."""

    def __init__(self, index: int, request: EngineRequest, served: Served, emit: Emit) -> None:
        self.index = index
        self._request = request
        self._served = served
        self._emit = emit
        self._sampled: list[int] = []
        self._received = 0
        self._missing = 0
        self._ended = False
        self._last: TokenStep | None = None
        room = request.context_length - len(request.prompt_ids)
        self._limit = room if request.max_tokens is None else request.max_tokens

    async def run(self) -> None:
        if self._limit <= 0:
            self._emit(TokenStep(self.index, (), None, FinishReason.LENGTH))
            return
        async with self._served.slots.taken(self._request.prompt_ids) as slot:
            while not self._ended:
                await self._run_leg(self._next_leg(slot), slot)

    def _next_leg(self, slot: Slot) -> Leg:
        request, position = self._request, len(self._sampled)
        banned = set(request.sampling.suppress_tokens)
        limit = self._limit - position
        if position < request.min_tokens:
            banned |= request.stop_ids
            limit = min(limit, request.min_tokens - position)
        if position == 0 and request.sampling.begin_suppress_tokens:
            banned |= set(request.sampling.begin_suppress_tokens)
            limit = 1
        if self._missing:
            limit = self._missing + OVERSHOOT
        return Leg(
            prompt=(*request.prompt_ids, *self._sampled),
            limit=limit,
            banned=frozenset(banned),
            seed=leg_seed(request.seeds[self.index], position),
            slot=slot.id,
            keep_on=self._missing > 0,
        )

    async def _run_leg(self, leg: Leg, slot: Slot) -> None:
        """Leaving it before llama.cpp's own end closes the connection, and waits until the slot is idle."""
        self._received = 0
        over = False
        slot.cached = ()
        try:
            async with self._served.connection.stream("/completion", completion(self._request, leg)) as events:
                while not over and not (self._ended and self._last is None):
                    event = await events.next()
                    if event is None:
                        raise EOFError("the answer broke off")
                    over = bool(event["stop"])
                    self._hear(event, leg)
        finally:
            if not over:
                await until_idle(self._served.connection, slot.id, self._served.alive)
            slot.cached = (*self._request.prompt_ids, *self._sampled)

    def _hear(self, event: dict[str, Any], leg: Leg) -> None:
        if event["stop"]:
            self._leg_over(event, leg)
        elif "prompt_progress" in event:
            self._served.count_step()
            self._emit(PromptStep(cached_tokens=int(event["prompt_progress"]["cache"])))
        elif self._last is not None:
            self._give_last()  # llama.cpp did not end where we do: the leg is closed
        else:
            self._served.count_step()
            self._take(event, leg)

    def _leg_over(self, event: dict[str, Any], leg: Leg) -> None:
        """What is missing at the end was half a character: it is sampled again, with some room to become whole."""
        predicted = int(event["tokens_predicted"])
        if self._last is not None:
            self._give_last()
            return
        missing = predicted - self._received
        if (missing and leg.keep_on) or not predicted:
            raise EngineFailed("llama.cpp ended without a token that can be known")
        self._missing = missing

    def _take(self, event: dict[str, Any], leg: Leg) -> None:
        """One frame: mostly one id, with those before it that the stream left out."""
        predicted = int(event["tokens_predicted"])
        ids = tuple(int(i) for i in event["tokens"])
        entries = self._logprobs(event)
        lost = predicted - self._received - len(ids)
        if lost > 0:
            ids = (*self._recover(event, ids[-1], lost), *ids)
            entries = None if entries is None else [*([IdLogprobs(None)] * lost), *entries]
        self._received = predicted
        self._missing = max(0, self._missing - len(ids))
        reason = None
        for taken, token_id in enumerate(ids, 1):
            self._sampled.append(token_id)
            reason = self._reason(token_id)
            if reason is not None:
                ids = ids[:taken]
                break
        step = TokenStep(self.index, ids, None if entries is None else tuple(entries[: len(ids)]), reason)
        self._ended = reason is not None
        own_end = predicted >= leg.limit or ids[-1] in self._served.vocabulary.eos_ids
        if reason is not None and own_end:
            self._last = step  # until llama.cpp has ended too, which is the next frame
        else:
            self._emit(step)

    def _give_last(self) -> None:
        assert self._last is not None
        self._emit(self._last)
        self._last = None

    def _reason(self, token_id: int) -> FinishReason | None:
        if token_id in self._request.stop_ids and len(self._sampled) > self._request.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self._sampled) >= self._limit else None

    def _recover(self, event: dict[str, Any], last: int, count: int) -> tuple[int, ...]:
        text: str | bytes = event["content"]
        if probabilities := event.get("completion_probabilities"):
            text = bytes(probabilities[0]["bytes"])
        found = lost_ids(self._served.vocabulary, text, last, count)
        if found is None:
            raise EngineFailed(f"llama.cpp's stream left out {count} tokens that cannot be worked out from its text")
        return found

    def _logprobs(self, event: dict[str, Any]) -> list[IdLogprobs] | None:
        count = self._request.logprobs
        if count is None:
            return None
        made: list[IdLogprobs] = []
        for entry in event["completion_probabilities"]:
            top = tuple((int(t["id"]), min(0.0, float(t["logprob"]))) for t in entry["top_logprobs"][:count])
            made.append(IdLogprobs(min(0.0, float(entry["logprob"])), top))
        return made
