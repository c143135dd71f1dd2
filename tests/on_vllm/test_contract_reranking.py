"""The contract's cases of `contract/test_reranking.py`, on vLLM."""

from __future__ import annotations

from contract.test_reranking import *  # noqa: F403
