"""The contract's cases of `contract/test_refusals.py`, on the remote engine in front of vLLM's own server."""

from contract.test_refusals import *  # noqa: F403
