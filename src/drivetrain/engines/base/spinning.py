"""How the threads of one computation wait for one another."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

SPINS = "10000"
"""By default they spin for milliseconds. Where anything else runs on the same cores (our own server does) they then
take the time of the thread that they wait for: 5 tokens a second in place of 120 (`llamacpp`), 1 of 20 (`native`)."""

FEW_SPINS = "1000"
"""For llama.cpp with a fixed number of threads: alone as fast as with more, 31 in place of 5 beside another process."""


def spin_briefly(environment: MutableMapping[str, str], spins: str = SPINS) -> None:
    """Of this process, if torch is not imported yet: libgomp reads it once.

    Where `OMP_WAIT_POLICY` says how to wait, that holds: libgomp would prefer the number to it.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", spins)


def briefly(environment: Mapping[str, str], spins: str = SPINS) -> Mapping[str, str]:
    """The same for another process."""
    made = dict(environment)
    spin_briefly(made, spins)
    return made
