"""The contract's cases of `contract/test_reranking.py`, through a deployment handle."""

from contract.test_reranking import *  # noqa: F403

del test_it_has_its_span  # noqa: F821 - the span is the replica's, in another process

ON_LLAMACPP = (
    "test_a_failure_ends_it_once",
    "test_an_engine_that_cannot_be_held_to_two_words_says_so",
    "test_deadline_and_cancelling_free_the_engine",
    "test_each_document_has_its_score_and_equal_ones_keep_their_order",
    "test_shutting_down_ends_it",
    "test_usage_is_that_of_what_was_computed",
)
