"""A plugin of vLLM's own kind, for our tests: its processes sleep while they wait for one another.

By themselves they spin for a second after each message, which takes both cores of a small machine from what is tested
and from whatever runs beside it.
"""

from __future__ import annotations


def register() -> None:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    (spins_s,) = SpinCondition.__init__.__defaults__
    assert spins_s > 0, "vLLM spins for this long by default"
    SpinCondition.__init__.__defaults__ = (0.0,)
