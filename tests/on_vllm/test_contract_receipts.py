"""The contract's cases of `contract/test_receipts.py`, on vLLM."""

from __future__ import annotations

from contract.test_receipts import *  # noqa: F403
