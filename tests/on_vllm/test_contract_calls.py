"""The contract's cases of `contract/test_calls.py`, on vLLM."""

from __future__ import annotations

from contract.test_calls import *  # noqa: F403
