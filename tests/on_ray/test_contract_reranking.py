"""Some of the contract's cases of `contract/test_reranking.py`, through a deployment handle: what must cross it."""

from contract.test_reranking import (
    ranker,
    test_each_document_has_its_score_and_equal_ones_keep_their_order,
    test_usage_is_that_of_what_was_computed,
    test_what_is_wrong_is_named,
)

__all__ = [
    "ranker",
    "test_each_document_has_its_score_and_equal_ones_keep_their_order",
    "test_usage_is_that_of_what_was_computed",
    "test_what_is_wrong_is_named",
]
