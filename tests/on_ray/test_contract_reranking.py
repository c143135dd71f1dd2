"""The contract's cases of `contract/test_reranking.py`, through a deployment handle."""

from contract.test_reranking import *  # noqa: F403

del test_it_has_its_span  # noqa: F821 - the span is the replica's, in another process
