"""The contract's cases of `contract/test_logprobs.py`, on the remote engine in front of vLLM's own server."""

from contract.test_logprobs import *  # noqa: F403
