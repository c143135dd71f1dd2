"""The contract's cases of `contract/test_endings.py`, on the remote engine in front of vLLM's own server."""

from contract.test_endings import *  # noqa: F403
