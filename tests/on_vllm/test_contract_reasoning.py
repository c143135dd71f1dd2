"""The contract's cases of `contract/test_reasoning.py`, on vLLM."""

from __future__ import annotations

from contract.test_reasoning import *  # noqa: F403
