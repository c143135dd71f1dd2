"""The contract's cases of `contract/test_hard_cases.py`, through a deployment handle."""

from contract.test_hard_cases import *  # noqa: F403

del test_an_unreadable_device_hides_no_ending  # noqa: F821 - it breaks an engine object of its own process
