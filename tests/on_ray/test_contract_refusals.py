"""The contract's cases of `contract/test_refusals.py`, through a deployment handle."""

from contract.test_refusals import *  # noqa: F403
