"""The contract's cases of `contract/test_constraints.py`, through a deployment handle."""

from contract.test_constraints import *  # noqa: F403
