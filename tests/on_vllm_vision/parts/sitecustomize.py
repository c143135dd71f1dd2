"""What a Python process needs in which vLLM runs a tiny DeepSeek-VL2: Python runs this at the start of each.

- torchvision: PyPI has it for CUDA's torch only. Beside torch for CPUs its C++ operators cannot be loaded, and it ends
  in its import because two of them are not even declared. DeepSeek-VL2's processor needs none of them.
- timm: vLLM builds DeepSeek-VL2's picture tower, of 400 million weights, whatever the configuration says. Here the
  same class is built with two small layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

WIDTH = 64
_SMALL = {"depth": 2, "embed_dim": WIDTH, "num_heads": 2, "mlp_ratio": 2.0}
_OPERATORS = ("nms", "qnms")
_kept: list[Any] = []


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


def _shrink(timm: ModuleType) -> None:
    whole = timm.create_model
    timm.create_model = lambda name, **options: whole(name, **options, **_SMALL)  # type: ignore[attr-defined]


class _Beside(MetaPathFinder):
    """Does something before one module is run, and something with it afterwards."""

    def __init__(self, name: str, before: Callable[[], None], after: Callable[[ModuleType], None]) -> None:
        self._name, self._before, self._after = name, before, after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_with_both(module: ModuleType) -> None:
                self._before()
                run(module)
                self._after(module)

            spec.loader.exec_module = run_with_both  # type: ignore[method-assign]
        return spec


if not any(type(finder).__name__ == "_Beside" for finder in sys.meta_path):
    sys.meta_path[:0] = [
        _Beside("torchvision", _declare_operators, lambda module: None),
        _Beside("timm", lambda: None, _shrink),
    ]
