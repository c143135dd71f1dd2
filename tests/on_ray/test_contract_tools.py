"""The contract's cases of `contract/test_tools.py`, through a deployment handle."""

from contract.test_tools import *  # noqa: F403

ON_LLAMACPP = (
    "test_a_model_that_calls_nothing_says_its_text",
    "test_required_whole_streamed_and_alone",
    "test_results_go_back",
)
