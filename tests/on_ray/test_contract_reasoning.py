"""The contract's cases of `contract/test_reasoning.py`, through a deployment handle."""

from contract.test_reasoning import *  # noqa: F403

ON_LLAMACPP = ("test_the_stream_adds_up_to_the_whole",)
