"""The contract's cases of `contract/test_calls.py`, on the remote engine in front of vLLM's own server."""

from contract.test_calls import *  # noqa: F403
