"""The contract's cases of `contract/test_logprobs.py`, on vLLM."""

from contract.test_logprobs import *  # noqa: F403
