"""The contract's cases of `contract/test_tools.py`, on vLLM."""

from __future__ import annotations

from contract.test_tools import *  # noqa: F403
