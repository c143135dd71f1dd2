"""The contract's cases of `contract/test_sampling.py`, on vLLM."""

from contract.test_sampling import *  # noqa: F403
