"""Products with the weights of linear layers by our own small C++ library (`product.cpp`), which comes with compiled
steps.

In the layers of SmolLM2-135M, in large pages, they were a quarter to a half faster than oneDNN's up to 128 rows, and a
twentieth at 512. And a row's result is the same to the last bit, however many others there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from drivetrain.engines.native.attention import operators

SOURCE = Path(__file__).with_name("product.cpp")


class _Product(ctypes.Structure):
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
    """As in `weight_layout.py`, of a weight `[out, in]`. `empty` makes the tensor that keeps it."""

    def __init__(self, library: Path, weight: Any, bias: Any, empty: Callable[..., Any] = torch.empty) -> None:
        loaded = ctypes.CDLL(str(library))
        self._multiply = loaded.drivetrain_multiply
        self._multiply.argtypes, self._multiply.restype = [c_void_p], None
        panel = loaded.drivetrain_panel()
        self._outputs, self._inputs = weight.shape
        self._panels = empty(-(-self._outputs // panel), self._inputs, panel)
        whole = self._outputs // panel
        self._panels[:whole] = weight[: whole * panel].view(whole, panel, self._inputs).transpose(1, 2)
        if rest := self._outputs % panel:
            self._panels[whole] = torch.nn.functional.pad(weight[whole * panel :].T, (0, panel - rest))
        self._bias = None if bias is None else torch.nn.functional.pad(bias, (0, -len(bias) % panel)).contiguous()

    @property
    def weight(self) -> Any:
        return self._panels.transpose(1, 2).reshape(-1, self._inputs)[: self._outputs]

    @property
    def bias(self) -> Any:
        return None if self._bias is None else self._bias[: self._outputs]

    def __call__(self, x: Any) -> Any:
        if x.dtype is not torch.float32 or x.shape[-1] != self._inputs:
            raise TypeError(f"this product is for rows of {self._inputs:,} numbers in float32")
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self._outputs)
        self._multiply(
            ctypes.byref(
                _Product(
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

    @property
    def operand(self) -> Callable[[Any], Any]:
        return self

    def traced(self, x: Any, model: Any, number: int) -> Any:
        return operators.linear(x, model, number, self._outputs)
