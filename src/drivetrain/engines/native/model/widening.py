"""A model of half precision that computes in float32 for a while, with the weights it has.

Only the module that is running has its weights twice, so this works where a copy of the model would not fit. Each pass
converts all weights once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

HALVES = (torch.float16, torch.bfloat16)

_Store = dict[str, Any]
"""A module's own parameters or buffers, by name."""


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """`model.dtype` is float32 inside. A weight that is read outside of its own module's call is NaN there."""
    held: list[tuple[_Store, _Store]] = []
    hooks: list[Any] = []
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            halves = {name: one for name, one in store.items() if one is not None and one.dtype in HALVES}
            if halves:
                held.append((store, halves))
                hooks += _hooks(module, store, halves)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for store, halves in held:
            store.update(halves)


def _hooks(module: Any, store: _Store, halves: _Store) -> list[Any]:
    def widen(*_: Any) -> None:
        store.update({name: half.float() for name, half in halves.items()})

    def drop(*_: Any) -> None:
        store.update({name: _stand_in(half) for name, half in halves.items()})

    drop()
    return [module.register_forward_pre_hook(widen), module.register_forward_hook(drop)]


def _stand_in(half: Any) -> Any:
    """Of the same shape and no size, for code that asks a weight for its type."""
    return torch.full((), torch.nan, device=half.device).expand(half.shape)
