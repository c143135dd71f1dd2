"""`quantize int8` on a CPU: products with 8-bit weights, a quarter of the bytes and integer arithmetic; by fbgemm, and
by our own small C++ library (`int8.cpp`), which comes with compiled steps.

Each row of a weight has one scale. First, a Hadamard matrix mixes blocks of 64 columns, and the inputs likewise. That
changes no product, but spreads single large values, which would make the steps of all others coarse.

Inputs keep about 15 bits. With 8 bits, a difference in the seventh digit, which another batch makes, would now and
then become a whole step and grow to percents of the logits: texts would depend on the rest of the batch. Each row has
its own scale and is summed by itself, so nothing of a neighbour gets into it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable, Iterator
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.native.cpu.panels import ProductLibrary, filled_up, into_panels, out_of_panels, rows_for

SOURCE = Path(__file__).with_name("int8.cpp")
WEIGHT_STEPS = 127
BLOCK = 64
SMALLEST_NORM = 1e-30
"""Takes the place of 0 as a row's largest value."""
ROW_FACTOR = 8
"""Our library rounds 8 inputs at a time, and a row has room for whole groups of them."""
AT_ONCE = 4096
"""Rows of a weight that a plain product multiplies in one go."""


def check_machine(device: Any, dtype: Any) -> None:
    """Raise `InvalidSetting` if int8 does not work here."""
    if device.type != "cpu":
        raise _refused(
            f"quantize int8 is for CPUs, and the device is {device}", "leave quantize out, or set device cpu"
        )
    if dtype is not torch.float32:
        name = str(dtype).removeprefix("torch.")
        raise _refused(f"quantize int8 computes beside float32, and dtype is {name}", "set dtype float32")
    if not available():
        raise _refused("this build of torch has no int8 products for this processor", "leave quantize out")


def available() -> bool:
    """Whether this build of torch has the products. Today's builds for x86 do."""
    there = "fbgemm" in torch.backends.quantized.supported_engines
    return there and hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")


def _refused(why: str, remedy: str) -> InvalidSetting:
    return InvalidSetting(f"{why}; {remedy}", param="quantize")


class PlainInt8:
    """With whole numbers `[out, in]` of mixed columns, a scale for each row, and inputs that are not rounded."""

    source = SOURCE

    def __init__(self, whole: Any, scales: Any, bias: Any) -> None:
        self.whole = whole
        self.scales = scales
        self.bias = bias

    @classmethod
    def of(cls, weight: Any, bias: Any) -> PlainInt8:
        mixed = _mixed(weight.detach())
        scales = (mixed.abs().amax(1) / WEIGHT_STEPS).clamp_(min=SMALLEST_NORM)
        return cls((mixed / scales[:, None]).round_().to(torch.int8), scales, bias)

    def __call__(self, x: Any) -> Any:
        rows = _mixed(x)
        parts = self.whole.split(AT_ONCE)  # as float32, a whole weight is four times as large
        out = torch.cat([torch.nn.functional.linear(rows, part.float()) for part in parts], -1) * self.scales
        return out if self.bias is None else out + self.bias

    @property
    def inputs(self) -> int:
        return int(self.whole.shape[1])

    @property
    def plain(self) -> PlainInt8:
        return self

    def for_torch(self) -> FbgemmProduct:
        return FbgemmProduct(self.whole, self.scales, self.bias)

    def in_panels(self, library: Path, empty: Callable[..., Any]) -> Int8PanelProduct:
        return Int8PanelProduct(library, self.whole, self.scales, self.bias, empty)


class FbgemmProduct:
    """Inputs are split into two numbers of 8 bits, coarse and fine."""

    def __init__(self, whole: Any, scales: Any, bias: Any) -> None:
        self._bias = bias
        self._steps = input_steps()
        self._packed = _pack(whole, scales)

    @property
    def plain(self) -> PlainInt8:
        return PlainInt8(*_unpack(self._packed), self._bias)

    def __call__(self, x: Any) -> Any:
        rows = _mixed(x.reshape(-1, x.shape[-1]))
        steps = rows.abs().amax(-1, keepdim=True).clamp_(min=SMALLEST_NORM).div_(self._steps)
        rows /= steps
        parts = torch.empty(2, *rows.shape)
        torch.round(rows, out=parts[0])
        torch.sub(rows, parts[0], out=parts[1]).mul_(2 * self._steps)
        coarse, fine = _fbgemm(parts, self._packed, self._steps).unbind()
        out = coarse.add_(fine, alpha=1 / (2 * self._steps)).mul_(steps)
        if self._bias is not None:
            out += self._bias
        return out.view(*x.shape[:-1], out.shape[-1])


class _Call(ctypes.Structure):
    _fields_ = [
        ("rows", c_int64),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("num_threads", c_int64),
        ("block", c_int64),
        ("row_room", c_int64),
        ("in", c_void_p),
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("rounded", c_void_p),
        ("steps", c_void_p),
        ("out", c_void_p),
    ]


class Int8PanelProduct:
    """Inputs are rounded to 16 bits, and lie in pairs."""

    def __init__(
        self, library: Path, whole: Any, scales: Any, bias: Any, empty: Callable[..., Any] = torch.empty
    ) -> None:
        self._library = ProductLibrary(library)
        panel = self._library.panel
        self._outputs, self._inputs = whole.shape
        self._row_room = -(-self._inputs // ROW_FACTOR) * ROW_FACTOR
        self._block = _block(self._inputs)
        self._panels = into_panels(whole, panel, 2, empty)
        self._scales = filled_up(scales / self._block**0.5, panel)  # what the library mixes is larger by that
        self._bias = bias
        self._filled_bias = filled_up(torch.zeros(self._outputs) if bias is None else bias, panel)

    @property
    def plain(self) -> PlainInt8:
        whole = out_of_panels(self._panels, self._outputs, self._inputs)
        return PlainInt8(whole, self._scales[: self._outputs] * self._block**0.5, self._bias)

    def __call__(self, x: Any) -> Any:
        x = rows_for(x, self._inputs)
        num_rows = x.numel() // self._inputs
        out = x.new_empty(*x.shape[:-1], self._outputs)
        rounded, steps = torch.empty(num_rows, self._row_room, dtype=torch.int16), torch.empty(num_rows)
        self._library.multiply(
            ctypes.byref(
                _Call(
                    num_rows,
                    self._inputs,
                    self._outputs,
                    torch.get_num_threads(),
                    self._block,
                    self._row_room,
                    x.data_ptr(),
                    self._panels.data_ptr(),
                    self._scales.data_ptr(),
                    self._filled_bias.data_ptr(),
                    rounded.data_ptr(),
                    steps.data_ptr(),
                    out.data_ptr(),
                )
            )
        )
        return out


@functools.cache
def hadamard(size: int) -> Any:
    """Orthonormal and symmetric; `size` is a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


@functools.cache
def input_steps() -> int:
    """How far the two parts of an input may go from zero for fbgemm's sums to be exact.

    Processors without VNNI add two products in 16 bits and cut off what does not fit; 7 bits always do.
    """
    widest = 127
    rows, weight = torch.full((1, BLOCK), float(widest)), torch.full((BLOCK, BLOCK), WEIGHT_STEPS, dtype=torch.int8)
    found = _fbgemm(rows, _pack(weight, torch.ones(BLOCK)), widest)
    return widest if bool((found == widest * WEIGHT_STEPS * BLOCK).all()) else 63


def _block(columns: int) -> int:
    return min(BLOCK, columns & -columns)


def _mixed(rows: Any) -> Any:
    mixing = hadamard(_block(rows.shape[-1]))
    return torch.mm(rows.reshape(-1, len(mixing)), mixing).view(rows.shape)


def _pack(weight: Any, scales: Any) -> Any:
    """Whole numbers, laid out for fbgemm, and the scale of each row."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with _about_to_be_dropped():
            zeros = torch.zeros(len(weight), dtype=torch.long)
            known = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(known, None)
    finally:
        torch.backends.quantized.engine = engine


def _unpack(packed: Any) -> tuple[Any, Any]:
    with _about_to_be_dropped():
        known, _ = torch.ops.quantized.linear_unpack(packed)
        return known.int_repr(), known.q_per_channel_scales().float()


@contextlib.contextmanager
def _about_to_be_dropped() -> Iterator[None]:
    """Without torch's warning of tensors that know their scale: it offers no other way to these products yet.

    https://github.com/pytorch/pytorch/issues/184982
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _fbgemm(rows: Any, packed: Any, steps: int) -> Any:
    """Of rows within ± `steps`, rounded to whole numbers."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, steps + 1, packed)
