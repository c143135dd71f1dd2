"""The contract's cases of `contract/test_gauges.py`, on the remote engine in front of vLLM's own server."""

from contract.test_gauges import *  # noqa: F403
