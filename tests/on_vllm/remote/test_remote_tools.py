"""The contract's cases of `contract/test_tools.py`, on the remote engine in front of vLLM's own server."""

from contract.test_tools import *  # noqa: F403
