"""The contract's cases of `contract/test_stops.py`, through a deployment handle."""

from contract.test_stops import *  # noqa: F403

ON_LLAMACPP = ("test_nothing_streamed_is_taken_back", "test_the_one_completed_first_wins_and_ties_go_to_the_longest")
