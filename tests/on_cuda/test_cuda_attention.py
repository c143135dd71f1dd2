"""The cases of `on_device/test_attention.py`, on CUDA."""

from __future__ import annotations

from on_device.test_attention import *  # noqa: F403
