"""The contract's cases of `contract/test_endings.py`, on vLLM."""

from contract.test_endings import *  # noqa: F403
