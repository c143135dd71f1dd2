"""A plugin of vLLM's own kind, for our tests: its processes sleep while they wait for one another.

By themselves they spin for a second after each message, which takes both cores of a small machine from what is tested
and from whatever runs beside it. The spinning also hides that a message wakes nobody if it comes as the one before is
just taken: so who sleeps looks by itself, many times a second.
"""

from __future__ import annotations

LOOK_MS = 10


def register() -> None:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    (spins_s,) = SpinCondition.__init__.__defaults__
    assert spins_s > 0, "vLLM spins for this long by default"
    SpinCondition.__init__.__defaults__ = (0.0,)
    wait = SpinCondition.wait

    def look_often(self: SpinCondition, timeout_ms: int | None = None) -> None:
        wait(self, LOOK_MS if timeout_ms is None else min(LOOK_MS, timeout_ms))

    SpinCondition.wait = look_often
