"""The contract's cases of `contract/test_streaming.py`, through a deployment handle."""

from contract.test_streaming import *  # noqa: F403
