"""The contract's cases of `contract/test_logprobs.py`, through a deployment handle."""

from contract.test_logprobs import *  # noqa: F403
