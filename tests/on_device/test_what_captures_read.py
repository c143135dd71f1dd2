"""What a captured step reads by its address stays where it was.

Only the CPU, in the place of a device: there, what was freed too early is found by chance.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402 - these need torch
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from drivetrain.engines.native.model.graphs import Compute, sizes  # noqa: E402
from on_device.devices import CPU, MODELS, assembled, folder  # noqa: E402


class Reads(TorchDispatchMode):  # type: ignore[misc]
    """The memory that operations read, but for what they make themselves."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, Any] = {}
        self._made: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for key, memory in _memory((args, kwargs)):
            if key not in self._made:
                self.given.setdefault(key, memory)
        result = func(*args, **(kwargs or {}))
        for key, memory in _memory(result):
            if key not in self.given:
                self._made.setdefault(key, memory)
        return result


def _memory(values: Any) -> list[tuple[int, Any]]:
    """Weak references by address, which keep it from being given to others. A CPU's packed weights have none."""
    tensors = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and not one.is_mkldnn]
    storages = [one.untyped_storage() for one in tensors]
    return [(storage._cdata, StorageWeakRef(storage)) for storage in storages]


@pytest.mark.parametrize("model", MODELS)
def test_it_lives_as_long_as_the_step(model: str, models: Path) -> None:
    captures: list[Reads] = []

    def capture(compute: Compute) -> tuple[Callable[[], None], Any]:
        """As on a device: nothing of `compute` is kept."""
        captures.append(Reads())
        with captures[-1]:
            result = compute()
        return (lambda: None), result

    with mock.patch("on_device.devices.recompute", capture):
        made = assembled(CPU, folder(models, model), max_batch=4)
    runner = made.stepper.runner
    cache = {one.untyped_storage()._cdata for one in (*runner.cache.keys.values(), *runner.cache.values.values())}
    gc.collect()
    assert len(captures) == len(sizes(4))
    for reads in captures:
        assert reads.given.keys() > cache
        assert not [memory for memory in reads.given.values() if memory.expired()]
