"""The cases of `on_device/test_engine.py`, on CUDA."""

from __future__ import annotations

from on_device.test_engine import *  # noqa: F403
