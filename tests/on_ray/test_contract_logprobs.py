"""The contract's cases of `contract/test_logprobs.py`, through a deployment handle."""

from contract.test_logprobs import *  # noqa: F403

ON_LLAMACPP = ("test_echo_with_prompt_logprobs", "test_streamed_entries_equal_the_whole")
