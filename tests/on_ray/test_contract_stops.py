"""The contract's cases of `contract/test_stops.py`, through a deployment handle."""

from contract.test_stops import *  # noqa: F403
