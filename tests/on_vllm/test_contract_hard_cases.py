"""The contract's cases of `contract/test_hard_cases.py`, on vLLM."""

from contract.test_hard_cases import *  # noqa: F403
