"""How many bytes the KV cache may take, and what the device holds."""

from __future__ import annotations

from typing import Any

from drivetrain.core.errors import InvalidSetting, LoadFailed
from drivetrain.engines.checkpoint.devices import device_memory
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS
from drivetrain.telemetry.memory import host_memory

HOST_SHARE = 0.25
"""Of the memory that is free after loading, for the cache, on a machine that does other things as well."""

DEVICE_SHARE = 0.8
"""The same on an accelerator."""

FALLBACK_BYTES = 2**30
"""Where the system does not say how much is free."""


def kv_budget(setting_gb: float | None, device: Any) -> int:
    """Bytes for keys and values: the setting, else a share of what is free now."""
    if setting_gb is not None:
        return int(setting_gb * 2**30)
    on_device = device_memory(device)
    if on_device:
        return int(on_device[0].available_bytes * DEVICE_SHARE)
    return int(host_memory().available_bytes * HOST_SHARE) or FALLBACK_BYTES


def fitting_context(wanted: int, token_bytes: int, budget_bytes: int, *, stated: bool) -> int:
    """The longest context of which the budget holds one. One that was `stated` is not made shorter."""
    fits = budget_bytes // (token_bytes * BLOCK_TOKENS) * BLOCK_TOKENS
    if fits >= wanted:
        return wanted
    needed = wanted * token_bytes / 2**30
    if stated:
        raise InvalidSetting(
            f"one request of {wanted:,} tokens needs a KV cache of {needed:.2f} GiB, and there are"
            f" {budget_bytes / 2**30:.2f}; raise kv_cache_gb or lower context_length",
            param="context_length",
        )
    if fits < 1:
        raise LoadFailed("there is no memory for even one block of KV cache; raise kv_cache_gb")
    return fits
