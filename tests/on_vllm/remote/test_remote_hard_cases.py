"""The contract's cases of `contract/test_hard_cases.py`, on the remote engine in front of vLLM's own server."""

from contract.test_hard_cases import *  # noqa: F403
