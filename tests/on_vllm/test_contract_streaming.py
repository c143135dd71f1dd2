"""The contract's cases of `contract/test_streaming.py`, on vLLM."""

from contract.test_streaming import *  # noqa: F403
