"""One choice of a request, in a slot of its own: legs in and steps out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineRequest, PromptStep, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.results import FinishReason
from drivetrain.engines.base.generation import Emit
from drivetrain.engines.base.room import room_after
from drivetrain.engines.llama_server.completion import OVERSHOOT, Completion, seed_at
from drivetrain.engines.llama_server.frames import ChoiceIds, EndFrame, PromptFrame, TokenFrame, read, unspelled
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.errors import ServerRefused
from drivetrain.engines.llamacpp.idle import SlotWatch
from drivetrain.engines.llamacpp.images.continuing import Continued, behind
from drivetrain.engines.llamacpp.images.prompt import ImagePrompt, ImagePrompts, refused
from drivetrain.engines.llamacpp.recovery import lost_ids
from drivetrain.engines.llamacpp.slots import UNKNOWN, ServerSlot, SlotPool
from drivetrain.engines.llamacpp.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server and what is known of its model."""

    connection: ChildConnection
    vocabulary: Vocabulary
    slots: SlotPool
    count_step: Callable[[], None]
    computing: Callable[[], AbstractContextManager[None]]
    """Entered while a slot is in use."""
    watch: SlotWatch
    image_prompts: ImagePrompts | None = None


@dataclass(frozen=True, slots=True)
class Leg:
    """One completion of llama.cpp, which is mostly all of a choice. Bans that end before the answer does make more, and
    ends of llama.cpp's that are none of ours. `forced` are ids that a grammar makes it sample first.
    """

    completion: Completion
    forced: tuple[int, ...] = ()


class ChoiceRun:
    """The ids of one choice. A leg ends where llama.cpp ends; if the choice does not, another goes on from there.

    Behind images and under a grammar, an end that llama.cpp would end at and we would not is banned instead of read
    past: nothing could go on after it. A grammar would begin anew in a second leg, so there is none.
    """

    def __init__(
        self, index: int, request: EngineRequest, served: RunningServer, emit: Emit, images: ImagePrompt | None = None
    ) -> None:
        self.index = index
        self._request = request
        self._served = served
        self._emit = emit
        self._images = images
        self._key = request.prompt_ids if images is None else images.key
        self._ids = ChoiceIds(index, request)
        self._received = 0
        self._missing = 0
        self._ended = False
        self._last: TokenStep | None = None

    async def run(self) -> None:
        if self._ids.limit <= 0:
            self._emit(TokenStep(self.index, (), None, FinishReason.LENGTH))
            return
        async with self._served.slots.taken(self._key, self._request.cache_salt) as slot:
            try:
                with self._served.computing():
                    while not self._ended:
                        leg = self._next_leg(slot, await self._continued())
                        await self._run_leg(leg, slot)
            except ServerRefused as exc:
                raise exc if self._images is None else refused(exc) from exc

    async def _continued(self) -> Continued | None:
        if self._images is None or self._served.image_prompts is None:
            return None
        tokenizer = self._served.image_prompts.tokenizer
        return await asyncio.to_thread(behind, self._images, self._ids.sampled, tokenizer)

    def _next_leg(self, slot: ServerSlot, continued: Continued | None) -> Leg:
        request, position = self._request, len(self._ids.sampled)
        banned = set(request.sampling.suppress_tokens)
        limit = self._ids.limit - position
        if continued is not None or request.grammar is not None:
            banned |= self._served.vocabulary.server_ends - request.stop_ids
            limit += OVERSHOOT  # so a half character at the limit takes no second leg
        if position < request.min_tokens:
            banned |= request.stop_ids
            limit = min(limit, request.min_tokens - position)
        if position == 0 and request.sampling.begin_suppress_tokens:
            banned |= set(request.sampling.begin_suppress_tokens)
            limit = 1
        if self._missing:
            limit = self._missing + OVERSHOOT
        forced = () if continued is None else continued.forced
        completion = Completion(
            prompt=(*request.prompt_ids, *self._ids.sampled) if continued is None else continued.prompt.body,
            limit=len(forced) + limit,
            seed=seed_at(request.seeds[self.index], position),
            banned=frozenset(banned),
            ignore_eos=self._missing > 0,
            reuse=slot.salt == request.cache_salt,
            slot=slot.id,
            grammar=None if continued is None else continued.grammar,
        )
        return Leg(completion, forced)

    async def _run_leg(self, leg: Leg, slot: ServerSlot) -> None:
        """Leaving it before llama.cpp's own end closes the connection, and waits until the slot is idle."""
        self._received = 0
        heard = over = enough = False
        slot.cached = ()
        if not leg.completion.reuse:
            slot.salt = UNKNOWN

        def hear(event: dict[str, Any]) -> bool:
            nonlocal heard, over, enough
            heard = True
            slot.salt = self._request.cache_salt  # nothing of anybody else's is left in it now
            frame = read(event)
            over = isinstance(frame, EndFrame)
            enough = self._hear(frame, leg)
            return enough

        try:
            await self._served.connection.follow("/completion", leg.completion.body(self._request), hear)
            if not enough:
                raise EOFError("the answer broke off")
        finally:
            try:
                if not over:
                    compiling = self._request.grammar is not None and not heard
                    await self._served.watch.until_idle(slot.id, compiling=compiling)
            finally:
                # The last id was sampled and not computed; without any, who knows how much of the prompt was.
                slot.cached = (*self._key, *self._ids.sampled[:-1]) if self._ids.sampled else ()

    def _hear(self, frame: PromptFrame | TokenFrame | EndFrame, leg: Leg) -> bool:
        """True once nothing more of this leg is wanted."""
        if isinstance(frame, EndFrame):
            self._leg_over(frame, leg)
            return True
        if self._last is not None:
            self._give_last()  # llama.cpp did not end where we do: the leg is closed
            return True
        self._served.count_step()
        if isinstance(frame, PromptFrame):
            self._hear_prompt(frame)
        else:
            self._take(frame, leg)
        return self._ended and self._last is None

    def _hear_prompt(self, frame: PromptFrame) -> None:
        """Before an image is looked at, and with each step: only llama.cpp knows how long a prompt with images is."""
        if self._images is None:
            self._emit(PromptStep(cached_tokens=frame.cached))
        elif not self._ids.sampled:
            self._ids.limit = room_after(frame.total, self._request)
            self._emit(PromptStep(self._images.expanded(frame.total), cached_tokens=frame.cached))

    def _leg_over(self, frame: EndFrame, leg: Leg) -> None:
        """What is missing at the end was half a character: it is sampled again, with some room to become whole."""
        if self._last is not None:
            self._give_last()
            return
        in_reach = frame.predicted < leg.completion.limit
        constrained = self._request.grammar is not None
        if (self._images is not None or constrained) and frame.reason is FinishReason.LENGTH and in_reach:
            self._emit(TokenStep(self.index, (), None, FinishReason.LENGTH))  # the context is full
            self._ended = True
            return
        missing = frame.predicted - self._received
        again = leg.completion.ignore_eos and self._received == len(leg.forced)
        if (missing and again) or not frame.predicted or constrained:
            raise EngineFailed("llama.cpp ended without a token that can be known")
        self._missing = missing

    def _take(self, frame: TokenFrame, leg: Leg) -> None:
        if self._received < len(leg.forced):
            if frame.predicted > len(leg.forced) or frame.ids[-1] != leg.forced[frame.predicted - 1]:
                raise EngineFailed("llama.cpp did not come back to where this answer was")
            self._received = frame.predicted
            return
        missing = frame.missing(self._received)
        step = self._ids.step(frame, self._recover(frame, missing) if missing else ())
        self._received = frame.predicted
        self._missing = max(0, self._missing - len(frame.ids) - missing)
        self._ended = step.reason is not None
        if self._ended and self._llamacpp_ends(frame, step, leg):
            self._last = step  # until llama.cpp has ended too, which is the next frame
        else:
            self._emit(step)

    def _llamacpp_ends(self, frame: TokenFrame, step: TokenStep, leg: Leg) -> bool:
        return frame.predicted >= leg.completion.limit or step.token_ids[-1] in self._served.vocabulary.eos_ids

    def _give_last(self) -> None:
        assert self._last is not None
        self._emit(self._last)
        self._last = None

    def _recover(self, frame: TokenFrame, count: int) -> tuple[int, ...]:
        """By the bytes of the gap, where they are told."""
        text = bytes(frame.probabilities[0]["bytes"]) if frame.probabilities else frame.text
        found = lost_ids(self._served.vocabulary, text, frame.ids[-1], count)
        if found is None:
            raise unspelled(count)
        return found
