"""The contract's cases of `contract/test_constraints.py`, through a deployment handle."""

from contract.test_constraints import *  # noqa: F403

ON_LLAMACPP = ("test_the_limit_cuts_it", "test_the_time_of_masks_is_told_or_absent")
