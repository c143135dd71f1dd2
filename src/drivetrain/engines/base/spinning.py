"""How the threads of one computation wait for one another."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

SPIN_BRIEFLY = {"GOMP_SPINCOUNT": "10000"}
"""By default they spin for milliseconds. Where anything else runs on the same cores (our own server does) they then
take the time of the thread that they wait for: 5 tokens a second in place of 120 (`llamacpp`), 1 of 20 (`native`)."""


def briefly(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Where `OMP_WAIT_POLICY` says how to wait, that holds: libgomp would prefer the number to it."""
    return environment if "OMP_WAIT_POLICY" in environment else {**SPIN_BRIEFLY, **environment}


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """In this process, if torch is not imported yet: libgomp reads the environment once."""
    for name, value in briefly({}).items():
        if "OMP_WAIT_POLICY" not in environment:
            environment.setdefault(name, value)
