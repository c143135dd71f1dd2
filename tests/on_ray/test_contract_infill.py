"""Some of the contract's cases of `contract/test_infill.py`, through a deployment handle: what must cross it."""

from contract.test_infill import (
    filler,
    opened,
    test_a_model_without_the_tokens_refuses_it_by_name,
    test_it_can_be_tokenized_alone,
    test_it_streams_and_stops_as_any_answer,
    test_what_does_not_go_with_it_is_named,
)

__all__ = [
    "filler",
    "opened",
    "test_a_model_without_the_tokens_refuses_it_by_name",
    "test_it_can_be_tokenized_alone",
    "test_it_streams_and_stops_as_any_answer",
    "test_what_does_not_go_with_it_is_named",
]
