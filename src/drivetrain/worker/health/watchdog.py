"""What is wrong with an engine, as seen from outside: it is dead, it is stuck, or it fails every request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from drivetrain.core.engine import EmbedItem, Engine, EngineInfo, EngineRequest, Health, Pair, Step, TokenStep
from drivetrain.core.errors import DeviceLost, DrivetrainError, EngineFailed, OutOfMemory

TIMES_OUT_OF_MEMORY = 3
"""Requests in a row, with no answer and no token of another request in between."""

TIMES_FAILED = 6
"""The same for failures of any kind. The requests may be at fault, so the engine is then asked one of ours."""

PROBE_S = 30.0
"""The time for one token."""

PROBE_IDS = (1,)


class _InARow:
    """Counts failures of one kind while no request is answered and no token comes."""

    def __init__(self, kind: type[DrivetrainError], limit: int, what: str) -> None:
        self._kind = kind
        self._limit = limit
        self._what = what
        self._num = 0
        self._tokens = 0
        """How many tokens had been given out when the last failure came."""

    def ended(self, error: DrivetrainError | None, tokens: int) -> None:
        """Requests that were refused, abandoned by their client or too slow do not count."""
        if isinstance(error, self._kind):
            self._num = self._num + 1 if tokens == self._tokens else 1
            self._tokens = tokens
        elif error is None:
            self._num = 0

    def complaint(self, tokens: int) -> str:
        if self._num < self._limit or tokens != self._tokens:
            return ""
        return f"{self._num} requests in a row {self._what}"


async def answers(engine: Engine, info: EngineInfo) -> bool | None:
    """Whether it answers a request that is certainly valid, with a token, or a score or a vector if it makes those.
    None: not in time."""
    try:
        async with asyncio.timeout(PROBE_S):
            if info.capabilities.generation:
                return await _gives_a_token(engine, info.capabilities.context_length)
            if info.scorer is not None:
                return bool(await info.scorer.score([Pair(PROBE_IDS)]))
            return bool(await engine.embed([EmbedItem(PROBE_IDS)]))
    except TimeoutError:
        return None
    except Exception:  # noqa: BLE001 - whatever it is, there is no answer
        return False


async def _gives_a_token(engine: Engine, context: int) -> bool:
    probe = _Probe()
    request = EngineRequest(request_id="probe", prompt_ids=PROBE_IDS, context_length=context, max_tokens=1, seeds=(0,))
    handle = engine.generate(request, probe)
    try:
        await probe.over.wait()
    finally:
        handle.abort()
    return probe.answered


class _Probe:
    """The sink of our request."""

    def __init__(self) -> None:
        self.answered = False
        self.over = asyncio.Event()

    def take(self, step: Step) -> None:
        self.answered |= isinstance(step, TokenStep) and bool(step.token_ids)

    def close(self, error: DrivetrainError | None) -> None:
        self.over.set()


class Watchdog:
    """Gets the engine's health now and then, and the ending of each request.

    The time without progress is counted while requests want something of the engine. It adds up across requests that
    time out or leave, even if there are pauses between them.
    """

    def __init__(self, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._still_s = 0.0
        self._looked = clock()
        self._wanted = False
        self._signs: tuple[float, int] = (0.0, 0)
        self._out_of_memory = _InARow(OutOfMemory, TIMES_OUT_OF_MEMORY, "ran out of memory")
        self._failed = _InARow(EngineFailed, TIMES_FAILED, "failed in the engine before a token came")
        self.lost: DeviceLost | None = None
        """Set if the device is lost: no engine in this process can recover from that."""

    def ended(self, error: DrivetrainError | None, tokens: int = 0) -> None:
        """A request that reached the engine has ended. `tokens`: the number given out so far, by all requests."""
        if isinstance(error, DeviceLost):
            self.lost = error
        for row in (self._out_of_memory, self._failed):
            row.ended(error, tokens)

    def complaint(self, health: Health, *, wanted: bool, tokens: int = 0) -> str:
        """What is wrong, in words; empty if nothing is, or if the engine mends itself.

        `wanted`: whether requests have slots, even if they have not reached the engine yet.
        """
        self._count_stillness(health, tokens, wanted)
        if health.mends_itself:
            return ""
        if self.lost is not None:
            return self.lost.message
        if not health.alive:
            return health.detail or "the engine stopped"
        if self._still_s > self._stall_s:
            return f"the engine has made no progress for {self._still_s:.0f} seconds"
        return self._out_of_memory.complaint(tokens)

    def doubt(self, health: Health, tokens: int = 0) -> str:
        """What may be wrong, in words; `answers` finds out. If it was the requests' fault, call `trust`."""
        return "" if health.mends_itself else self._failed.complaint(tokens)

    def trust(self) -> None:
        self._failed.ended(None, 0)

    def _count_stillness(self, health: Health, tokens: int, wanted: bool) -> None:
        now, signs = self._clock(), (health.last_progress, tokens)
        if signs != self._signs:
            self._signs, self._still_s = signs, 0.0
        elif self._wanted:
            self._still_s += now - self._looked
        self._looked, self._wanted = now, wanted
