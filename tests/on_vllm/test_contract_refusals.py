"""The contract's cases of `contract/test_refusals.py`, on vLLM."""

from contract.test_refusals import *  # noqa: F403
