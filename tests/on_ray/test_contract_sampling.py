"""The contract's cases of `contract/test_sampling.py`, through a deployment handle."""

from contract.test_sampling import *  # noqa: F403
