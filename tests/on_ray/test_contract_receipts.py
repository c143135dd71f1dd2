"""The contract's cases of `contract/test_receipts.py`, through a deployment handle."""

from contract.test_receipts import *  # noqa: F403
