"""Of `contract/test_infill.py` what holds in front of vLLM's own server, which does not tell its special tokens."""

from __future__ import annotations

from contract.test_infill import test_a_model_without_the_tokens_refuses_it_by_name

__all__ = ["test_a_model_without_the_tokens_refuses_it_by_name"]
