"""The contract's cases of `contract/test_sampling.py`, through a deployment handle."""

from contract.test_sampling import *  # noqa: F403

ON_LLAMACPP = ("test_streamed_choices_route_by_index",)
