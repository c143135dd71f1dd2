"""The contract's cases of `contract/test_reasoning_parameters.py`, on vLLM."""

from __future__ import annotations

from contract.test_reasoning_parameters import *  # noqa: F403
