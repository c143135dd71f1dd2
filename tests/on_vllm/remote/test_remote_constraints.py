"""The contract's cases of `contract/test_constraints.py`, on the remote engine in front of vLLM's own server."""

from contract.test_constraints import *  # noqa: F403
