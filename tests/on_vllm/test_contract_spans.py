"""The contract's cases of `contract/test_spans.py`, on vLLM."""

from contract.test_spans import *  # noqa: F403
