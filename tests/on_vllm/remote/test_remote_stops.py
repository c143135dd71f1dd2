"""The contract's cases of `contract/test_stops.py`, on the remote engine in front of vLLM's own server."""

from contract.test_stops import *  # noqa: F403
