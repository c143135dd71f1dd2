"""The contract's cases of `contract/test_streaming.py`, through a deployment handle."""

from contract.test_streaming import *  # noqa: F403

ON_LLAMACPP = (
    "test_events_come_in_order_and_end_once",
    "test_joined_stream_equals_the_whole",
    "test_many_at_once_keep_apart",
    "test_text_is_the_decode_of_the_ids",
)
