"""The cases of `on_device/test_draws.py`, on CUDA."""

from __future__ import annotations

from on_device.test_draws import *  # noqa: F403
