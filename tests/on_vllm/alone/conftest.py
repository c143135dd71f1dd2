"""Tests that start a vLLM of their own, and end it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """The worker that others share is not there."""
