"""The contract's cases of `contract/test_infill.py`, on the remote engine in front of vLLM's own server."""

from contract.test_infill import *  # noqa: F403
