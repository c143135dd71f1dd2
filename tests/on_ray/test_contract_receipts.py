"""The contract's cases of `contract/test_receipts.py`, through a deployment handle."""

from contract.test_receipts import *  # noqa: F403

ON_LLAMACPP = ("test_a_stream_ends_with_it", "test_it_agrees_with_the_result")
