"""The contract's cases of `contract/test_tools.py`, through a deployment handle."""

from contract.test_tools import *  # noqa: F403
