"""The contract's cases of `contract/test_refusals.py`, through a deployment handle."""

from contract.test_refusals import *  # noqa: F403

ON_LLAMACPP = (
    "test_embeddings",
    "test_over_the_context_says_both_numbers",
    "test_special_tokens_of_the_caller_stay_text",
)
