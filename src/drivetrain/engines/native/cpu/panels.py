"""The weights of our own C++ products (`float32.cpp`, `int8.cpp`): in panels of some outputs each, and in these by
inputs, some of which may lie together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class ProductLibrary:
    """A library of one product, which takes a structure of its own."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        self.panel: int = loaded.drivetrain_panel()
        self.multiply = loaded.drivetrain_multiply
        self.multiply.argtypes, self.multiply.restype = [ctypes.c_void_p], None


def into_panels(weight: Any, panel: int, together: int, empty: Callable[..., Any]) -> Any:
    """Of a weight `[out, in]`, filled up with zeros. `empty` makes the tensor that is returned."""
    outputs, inputs = weight.shape
    if missing := -inputs % together:
        weight = torch.nn.functional.pad(weight, (0, missing))
    groups = weight.shape[1] // together
    panels = empty(-(-outputs // panel), groups, panel, together, dtype=weight.dtype)
    num_full = outputs // panel
    panels[:num_full] = weight[: num_full * panel].view(num_full, panel, groups, together).transpose(1, 2)
    if outputs % panel:
        last = torch.nn.functional.pad(weight[num_full * panel :], (0, 0, 0, -outputs % panel))
        panels[num_full] = last.view(panel, groups, together).transpose(0, 1)
    return panels


def out_of_panels(panels: Any, outputs: int, inputs: int) -> Any:
    num_panels, groups, panel, together = panels.shape
    weight = panels.transpose(1, 2).reshape(num_panels * panel, groups * together)
    return weight[:outputs, :inputs].contiguous()


def filled_up(numbers: Any, panel: int) -> Any:
    """One for each output."""
    return torch.nn.functional.pad(numbers, (0, -len(numbers) % panel)).contiguous()


def rows_for(x: Any, inputs: int) -> Any:
    """As the library reads them. Raises `TypeError` for others."""
    if x.dtype is not torch.float32 or x.shape[-1] != inputs:
        raise TypeError(f"this product is for rows of {inputs:,} numbers in float32")
    return x.contiguous()
