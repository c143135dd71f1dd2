"""The contract's cases of `contract/test_stops.py`, on vLLM."""

from contract.test_stops import *  # noqa: F403
