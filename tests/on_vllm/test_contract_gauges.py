"""The contract's cases of `contract/test_gauges.py`, on vLLM."""

from contract.test_gauges import *  # noqa: F403
