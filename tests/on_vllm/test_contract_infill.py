"""The contract's cases of `contract/test_infill.py`, on vLLM."""

from __future__ import annotations

from contract.test_infill import *  # noqa: F403
