"""The contract's cases of `contract/test_spans.py`, on the remote engine in front of vLLM's own server."""

from contract.test_spans import *  # noqa: F403
