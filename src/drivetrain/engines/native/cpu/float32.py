"""Products in float32: by oneDNN, and by our own small C++ library (`float32.cpp`), which comes with compiled steps.

In the layers of SmolLM2-135M, in large pages, our own were a quarter to a half faster than oneDNN's up to 128 rows, and
a twentieth at 512. And a row's result is the same to the last bit, however many others there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from drivetrain.engines.native.cpu.panels import ProductLibrary, filled_up, into_panels, out_of_panels, rows_for

SOURCE = Path(__file__).with_name("float32.cpp")


class PlainFloat32:
    """With a weight `[out, in]` as it came."""

    source = SOURCE

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight = weight.detach()
        self.bias = bias

    def __call__(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight, self.bias)

    @property
    def inputs(self) -> int:
        return int(self.weight.shape[1])

    @property
    def plain(self) -> PlainFloat32:
        return self

    def for_torch(self) -> OneDnnProduct:
        return OneDnnProduct(self.weight, self.bias)

    def in_panels(self, library: Path, empty: Callable[..., Any]) -> PanelProduct:
        return PanelProduct(library, self.weight, self.bias, empty)


class OneDnnProduct:
    def __init__(self, weight: Any, bias: Any) -> None:
        self.bias = bias
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)

    @property
    def plain(self) -> PlainFloat32:
        return PlainFloat32(self._laid_out.to_dense(), self.bias)

    def __call__(self, x: Any) -> Any:
        num_rows = x.numel() // x.shape[-1]
        missing = rounded(num_rows) - num_rows
        if not missing:
            return self._product(x)
        rows = torch.nn.functional.pad(x.reshape(num_rows, -1), (0, 0, 0, missing))
        return self._product(rows)[:num_rows].view(*x.shape[:-1], -1)

    def _product(self, x: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise(x, self._laid_out, self.bias, "none", [], "")


def rounded(num_rows: int) -> int:
    """oneDNN keeps a kernel of some hundred kB for each number of rows it has met, and chunks have any number."""
    step = 1 if num_rows <= 8 else 4 if num_rows <= 64 else 32
    return -(-num_rows // step) * step


class _Call(ctypes.Structure):
    _fields_ = [
        ("rows", c_int64),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("num_threads", c_int64),
        ("in", c_void_p),
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
    ]


class PanelProduct:
    def __init__(self, library: Path, weight: Any, bias: Any, empty: Callable[..., Any] = torch.empty) -> None:
        self._library = ProductLibrary(library)
        self._outputs, self._inputs = weight.shape
        self._panels = into_panels(weight, self._library.panel, 1, empty)
        self._bias = None if bias is None else filled_up(bias, self._library.panel)

    @property
    def plain(self) -> PlainFloat32:
        bias = None if self._bias is None else self._bias[: self._outputs]
        return PlainFloat32(out_of_panels(self._panels, self._outputs, self._inputs), bias)

    def __call__(self, x: Any) -> Any:
        x = rows_for(x, self._inputs)
        out = x.new_empty(*x.shape[:-1], self._outputs)
        self._library.multiply(
            ctypes.byref(
                _Call(
                    x.numel() // self._inputs,
                    self._inputs,
                    self._outputs,
                    torch.get_num_threads(),
                    x.data_ptr(),
                    self._panels.data_ptr(),
                    None if self._bias is None else self._bias.data_ptr(),
                    out.data_ptr(),
                )
            )
        )
        return out
