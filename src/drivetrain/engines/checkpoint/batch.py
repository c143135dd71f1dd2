"""The setting `max_batch`, of the engines that run requests as one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivetrain.core.errors import InvalidSetting

DEFAULT_BATCH = 64


def max_batch(options: Mapping[str, Any], largest: int) -> int:
    wanted = options.get("max_batch")
    if wanted is None:
        return DEFAULT_BATCH
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= largest:
        raise InvalidSetting(f"max_batch is {wanted!r}; it must be from 1 to {largest}", param="max_batch")
    return wanted
