"""The contract's cases of `contract/test_reasoning.py`, through a deployment handle."""

from contract.test_reasoning import *  # noqa: F403
