"""The cases of `on_device/test_steps.py`, on CUDA."""

from __future__ import annotations

from on_device.test_steps import *  # noqa: F403
