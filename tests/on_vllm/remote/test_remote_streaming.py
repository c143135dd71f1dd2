"""The contract's cases of `contract/test_streaming.py`, on the remote engine in front of vLLM's own server."""

from contract.test_streaming import *  # noqa: F403
