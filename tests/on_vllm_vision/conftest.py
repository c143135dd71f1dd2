"""Models on vLLM whose pictures need torchvision: a pytest of its own, `parts` on its path (`make test-vllm`)."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """vLLM never closes its zmq context: one that ended leaves it to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:Unclosed context:ResourceWarning")
