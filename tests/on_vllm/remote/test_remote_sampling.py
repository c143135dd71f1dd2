"""The contract's cases of `contract/test_sampling.py`, on the remote engine in front of vLLM's own server."""

from contract.test_sampling import *  # noqa: F403
