"""The contract's cases of `contract/test_constraints.py`, on vLLM."""

from contract.test_constraints import *  # noqa: F403
