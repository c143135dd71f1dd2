"""How many bytes the KV cache may take, and what the device holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from drivetrain.core.errors import InvalidSetting, LoadFailed
from drivetrain.engines.checkpoint.devices import device_memory
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS, most_blocks
from drivetrain.engines.native.kv.groups import Window
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


def fitting_context(wanted: int, sizes: Mapping[Window, int], chunk: int, budget_bytes: int, *, stated: bool) -> int:
    """The longest context of which the budget holds one. One that was `stated` is not made shorter.

    `sizes`: the bytes of a block, for each group of layers. `chunk`: the most tokens of a sequence in a step.
    """

    def needed(length: int) -> int:
        return sum(size * most_blocks(length, window, chunk) for window, size in sizes.items())

    if needed(wanted) <= budget_bytes:
        return wanted
    if stated:
        raise InvalidSetting(
            f"one request of {wanted:,} tokens needs a KV cache of {needed(wanted) / 2**30:.2f} GiB, and there are"
            f" {budget_bytes / 2**30:.2f}; raise kv_cache_gb or lower context_length",
            param="context_length",
        )
    lengths = range(0, wanted + 1, BLOCK_TOKENS)
    fits = lengths[bisect_right(lengths, budget_bytes, key=needed) - 1]
    if fits < 1:
        raise LoadFailed("there is no memory for even one block of KV cache; raise kv_cache_gb")
    return fits


def num_blocks(
    sizes: Mapping[Window, int], context_length: int, chunk: int, max_batch: int, budget_bytes: int
) -> dict[Window, int]:
    """How many blocks each group of layers gets: as many as the others, so that short texts find room in all of them.

    But one text of the whole context fits, and a window gets no more than `max_batch` texts ever need, so that more is
    left for full attention.
    """

    def at(level: int) -> dict[Window, int]:
        made = {}
        for window in sizes:
            least = most_blocks(context_length, window, chunk)
            most = least * max_batch if window is not None and None in sizes else level
            made[window] = max(least, min(level, most))
        return made

    def taken(level: int) -> int:
        return sum(size * number for size, number in zip(sizes.values(), at(level).values(), strict=True))

    levels = range(budget_bytes // min(sizes.values()) + 1)
    return at(bisect_right(levels, budget_bytes, key=taken) - 1)
