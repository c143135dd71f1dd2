"""The contract's cases of `contract/test_reranking.py`, through a deployment handle."""

from contract.test_reranking import *  # noqa: F403
