"""One choice of a request, in a slot of its own: legs in and steps out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineRequest, IdLogprobs, PromptStep, Step, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.results import FinishReason
from drivetrain.engines.base.room import room_after
from drivetrain.engines.llamacpp.child.connection import Connection
from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.engines.llamacpp.idle import SlotWatch
from drivetrain.engines.llamacpp.images.continuing import Continued, behind
from drivetrain.engines.llamacpp.images.prompt import ImagePrompt, ImagePrompts, refused
from drivetrain.engines.llamacpp.payload import Leg, completion, leg_seed
from drivetrain.engines.llamacpp.recovery import lost_ids
from drivetrain.engines.llamacpp.slots import UNKNOWN, Slot, SlotPool
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
    watch: SlotWatch
    image_prompts: ImagePrompts | None = None


class ChoiceRun:
    """The ids of one choice. A leg ends where llama.cpp ends; if the choice does not, another goes on from there.

    Behind images, an end that llama.cpp would end at and we would not is banned instead of read past: nothing could go
    on after it.
    """

    def __init__(
        self, index: int, request: EngineRequest, served: Served, emit: Emit, images: ImagePrompt | None = None
    ) -> None:
        self.index = index
        self._request = request
        self._served = served
        self._emit = emit
        self._images = images
        self._key = request.prompt_ids if images is None else images.key
        self._sampled: list[int] = []
        self._received = 0
        self._missing = 0
        self._plain = False
        self._ended = False
        self._last: TokenStep | None = None
        left = request.context_length - len(request.prompt_ids)
        self._limit = left if request.max_tokens is None else request.max_tokens

    async def run(self) -> None:
        if self._limit <= 0:
            self._emit(TokenStep(self.index, (), None, FinishReason.LENGTH))
            return
        async with self._served.slots.taken(self._key, self._request.cache_salt) as slot:
            try:
                while not self._ended:
                    leg = self._next_leg(slot, await self._continued())
                    await self._run_leg(leg, slot)
            except ServerRefused as exc:
                raise exc if self._images is None else refused(exc) from exc

    async def _continued(self) -> Continued | None:
        if self._images is None or self._served.image_prompts is None:
            return None
        tokenizer = self._served.image_prompts.tokenizer
        return await asyncio.to_thread(behind, self._images, self._sampled, tokenizer)

    def _next_leg(self, slot: Slot, continued: Continued | None) -> Leg:
        request, position = self._request, len(self._sampled)
        banned = set(request.sampling.suppress_tokens)
        limit = self._limit - position
        if continued is not None:
            banned |= self._served.vocabulary.server_ends - request.stop_ids
            limit += OVERSHOOT  # so a half character at the limit costs no second leg
        if position < request.min_tokens:
            banned |= request.stop_ids
            limit = min(limit, request.min_tokens - position)
        if position == 0 and request.sampling.begin_suppress_tokens:
            banned |= set(request.sampling.begin_suppress_tokens)
            limit = 1
        if self._missing:
            limit = self._missing + OVERSHOOT
        return Leg(
            prompt=(*request.prompt_ids, *self._sampled) if continued is None else continued.prompt.body,
            forced=() if continued is None else continued.forced,
            grammar=None if continued is None else continued.grammar,
            limit=limit,
            banned=frozenset(banned),
            seed=leg_seed(request.seeds[self.index], position),
            slot=slot.id,
            reuse=slot.salt == request.cache_salt,
            keep_on=self._missing > 0,
        )

    async def _run_leg(self, leg: Leg, slot: Slot) -> None:
        """Leaving it before llama.cpp's own end closes the connection, and waits until the slot is idle."""
        self._received = 0
        self._plain = self._request.logprobs is None and not leg.forced and not self._missing
        over = enough = False
        slot.cached = ()
        if not leg.reuse:
            slot.salt = UNKNOWN

        def hear(event: dict[str, Any]) -> bool:
            nonlocal over, enough
            slot.salt = self._request.cache_salt  # nothing of anybody else's is left in it now
            over = event["stop"]
            enough = self._hear(event, leg)
            return enough

        try:
            await self._served.connection.follow("/completion", completion(self._request, leg), hear)
            if not enough:
                raise EOFError("the answer broke off")
        finally:
            try:
                if not over:
                    await self._served.watch.until_idle(slot.id)
            finally:
                # The last id was sampled and not computed; without any, who knows how much of the prompt was.
                slot.cached = (*self._key, *self._sampled[:-1]) if self._sampled else ()

    def _hear(self, event: dict[str, Any], leg: Leg) -> bool:
        """True once nothing more of this leg is wanted."""
        if event["stop"]:
            self._leg_over(event, leg)
            return True
        if self._last is not None:
            self._give_last()  # llama.cpp did not end where we do: the leg is closed
            return True
        self._served.count_step()
        if "prompt_progress" in event:
            self._hear_prompt(event["prompt_progress"])
        else:
            self._take(event, leg)
        return self._ended and self._last is None

    def _hear_prompt(self, progress: Mapping[str, int]) -> None:
        """Before an image is looked at, and with each step: only llama.cpp knows how long a prompt with images is."""
        total, cached = progress["total"], progress["cache"]
        if self._images is None:
            self._emit(PromptStep(cached_tokens=cached))
        elif not self._sampled:
            self._limit = room_after(total, self._request)
            self._emit(PromptStep(self._images.expanded(total), cached_tokens=cached))

    def _leg_over(self, event: dict[str, Any], leg: Leg) -> None:
        """What is missing at the end was half a character: it is sampled again, with some room to become whole."""
        predicted = int(event["tokens_predicted"])
        if self._last is not None:
            self._give_last()
            return
        if self._images is not None and event["stop_type"] == "limit" and predicted < leg.sampled:
            self._emit(TokenStep(self.index, (), None, FinishReason.LENGTH))  # the context is full
            self._ended = True
            return
        missing = predicted - self._received
        if (missing and leg.keep_on and self._received == len(leg.forced)) or not predicted:
            raise EngineFailed("llama.cpp ended without a token that can be known")
        self._missing = missing

    def _take(self, event: dict[str, Any], leg: Leg) -> None:
        """One frame: mostly one id, with those before it that the stream left out."""
        ids: tuple[int, ...] = tuple(event["tokens"])
        predicted: int = event["tokens_predicted"]
        next_one = self._plain and len(ids) == 1 and predicted == self._received + 1
        if next_one and ids[0] not in self._request.stop_ids and len(self._sampled) + 1 < self._limit:
            self._received = predicted  # as nearly always, at less cost than below
            self._sampled.append(ids[0])
            self._emit(TokenStep(self.index, ids))
            return
        if self._received < len(leg.forced):
            if predicted > len(leg.forced) or ids[-1] != leg.forced[predicted - 1]:
                raise EngineFailed("llama.cpp did not come back to where this answer was")
            self._received = predicted
            return
        entries = None if self._request.logprobs is None else self._logprobs(event, self._request.logprobs)
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
        if reason is not None and (predicted >= leg.sampled or ids[-1] in self._served.vocabulary.eos_ids):
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

    def _logprobs(self, event: dict[str, Any], count: int) -> list[IdLogprobs]:
        made: list[IdLogprobs] = []
        for entry in event["completion_probabilities"]:
            top = tuple((int(t["id"]), min(0.0, float(t["logprob"]))) for t in entry["top_logprobs"][:count])
            made.append(IdLogprobs(min(0.0, float(entry["logprob"])), top))
        return made
