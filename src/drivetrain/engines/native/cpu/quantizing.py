"""`quantize int8` on a CPU: matrix products with 8-bit weights, a quarter of the bytes and integer arithmetic.

Each row of a weight has one scale. First, a Hadamard matrix mixes blocks of 64 columns, and the inputs likewise. That
changes no product, but spreads single large values, which would make the steps of all others coarse.

Inputs are split into two numbers of 8 bits, coarse and fine, and so keep about 15 bits. With 8 bits, a difference in
the seventh digit, which another batch makes, would now and then become a whole step and grow to percents of the logits:
texts would depend on the rest of the batch. Each row has its own scale, and the sums are exact, so nothing of a
neighbour gets into a row.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from drivetrain.core.errors import InvalidSetting
from drivetrain.engines.native.attention import operators

WEIGHT_STEPS = 127
BLOCK = 64
SMALLEST_NORM = 1e-30
"""Takes the place of 0 as a row's largest value."""


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


class Int8Product:
    """The product with a weight `[out, in]`, and the bias after it."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self._bias = bias
        self._out_features = len(weight)
        self._steps = input_steps()
        self._mixing = hadamard(min(BLOCK, weight.shape[1] & -weight.shape[1]))
        self._whole = WholeProduct(None if weight.is_meta else self._packed(weight.detach()), self._steps)

    def __call__(self, x: Any) -> Any:
        rows = _mixed(x.reshape(-1, x.shape[-1]), self._mixing)
        steps = rows.abs().amax(-1, keepdim=True).clamp_(min=SMALLEST_NORM).div_(self._steps)
        rows /= steps
        parts = torch.empty(2, *rows.shape)
        torch.round(rows, out=parts[0])
        torch.sub(rows, parts[0], out=parts[1]).mul_(2 * self._steps)
        coarse, fine = self._whole(parts).unbind()
        out = coarse.add_(fine, alpha=1 / (2 * self._steps)).mul_(steps)
        if self._bias is not None:
            out += self._bias
        return out.view(*x.shape[:-1], out.shape[-1])

    def _packed(self, weight: Any) -> Any:
        mixed = _mixed(weight, self._mixing)
        scales = (mixed.abs().amax(1) / WEIGHT_STEPS).clamp_(min=SMALLEST_NORM)
        return _pack((mixed / scales[:, None]).round_().to(torch.int8), scales)

    @property
    def operand(self) -> Callable[[Any], Any]:
        return self._whole

    def traced(self, x: Any, model: Any, number: int) -> Any:
        """The same as one expression, which a compiler turns into two loops."""
        rows = _mixed(x.reshape(-1, x.shape[-1]), self._mixing)
        steps = rows.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_NORM) / self._steps
        rows = rows / steps
        whole = rows.round()
        parts = torch.stack([whole, (rows - whole) * (2 * self._steps)])
        coarse, fine = operators.linear(parts, model, number, self._out_features).unbind()
        out = (coarse + fine / (2 * self._steps)) * steps
        if self._bias is not None:
            out = out + self._bias
        return out.view(*x.shape[:-1], self._out_features)


class WholeProduct:
    """The product with a packed weight, of rows within ± `steps`, rounded to whole numbers."""

    def __init__(self, packed: Any, steps: int) -> None:
        self._packed = packed
        self._steps = steps

    def __call__(self, rows: Any) -> Any:
        return _product(rows, self._packed, self._steps)


def hadamard(size: int) -> Any:
    """Orthonormal and symmetric; `size` is a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


@functools.cache
def input_steps() -> int:
    """How far the two parts of an input may go from zero for the sums to be exact.

    Processors without VNNI add two products in 16 bits and cut off what does not fit; 7 bits always do.
    """
    widest = 127
    rows, weight = torch.full((1, BLOCK), float(widest)), torch.full((BLOCK, BLOCK), WEIGHT_STEPS, dtype=torch.int8)
    found = _product(rows, _pack(weight, torch.ones(BLOCK)), widest)
    return widest if bool((found == widest * WEIGHT_STEPS * BLOCK).all()) else 63


def _mixed(rows: Any, mixing: Any) -> Any:
    return torch.mm(rows.reshape(-1, len(mixing)), mixing).view(rows.shape)


def _pack(weight: Any, scales: Any) -> Any:
    """Whole numbers, laid out for the product, and the scale of each row."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            # torch is about to drop tensors that know their scale, but offers no other way to these products yet:
            # https://github.com/pytorch/pytorch/issues/184982
            warnings.simplefilter("ignore", UserWarning)
            zeros = torch.zeros(len(weight), dtype=torch.long)
            known = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(known, None)
    finally:
        torch.backends.quantized.engine = engine


def _product(rows: Any, packed: Any, steps: int) -> Any:
    """Of rows within ± `steps`, rounded to whole numbers."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, steps + 1, packed)
