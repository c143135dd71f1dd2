"""Linear layers for CPUs, with weights that are laid out once for their product: for one of torch's libraries, and for
our own where it was built.

With few rows, as in decoding, they are two to four times as fast as plain ones, and faster still with 8-bit weights.
Only for models that compute in float32; others are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from drivetrain.engines.native.attention import operators
from drivetrain.engines.native.cpu import float32, int8
from drivetrain.engines.native.cpu.float32 import PlainFloat32
from drivetrain.engines.native.cpu.int8 import PlainInt8
from drivetrain.engines.native.cpu.large_pages import LargePages
from drivetrain.engines.native.cpu.products import PlainProduct, Product
from drivetrain.engines.native.pages import give_back_free

SMALLEST = 64 * 64
"""Weights below this are left alone: the call costs more than the product."""

OF_TORCH = (float32.OneDnnProduct, int8.FbgemmProduct)
IN_PANELS = (float32.PanelProduct, int8.Int8PanelProduct)


def sources_of_products() -> tuple[Path, ...]:
    """Of our own libraries, for all kinds of weights that this machine can have."""
    return (float32.SOURCE, int8.SOURCE) if int8.available() else (float32.SOURCE,)


def pack_linear_layers(model: Any, *, quantize: str = "none", only_traced: bool = False) -> int:
    """Replace the linear layers in place and return their number. Weights shared with embeddings stay for those.

    The weights stay plain until it is known which product they are for. With `only_traced`, the model can only be
    traced, and the products are never asked.
    """
    needs_onednn = quantize == "none" and not only_traced
    if model.device.type != "cpu" or (needs_onednn and not torch.backends.mkldnn.is_available()):
        return 0
    plain = PlainInt8.of if quantize == "int8" else PlainFloat32
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = weight_of(child)
            if weight is not None and fits(weight):
                product = PlainFloat32(weight.to("meta"), None) if only_traced else plain(weight, child.bias)
                setattr(parent, name, PackedLinear(child, product, keep=id(child.weight) in shared))
                num_packed += 1
    return num_packed


def packed_layers(model: Any) -> list[PackedLinear]:
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


def takes_panels(model: Any) -> bool:
    return any(not isinstance(layer.product, IN_PANELS) for layer in packed_layers(model))


def lay_out_in_panels(model: Any, libraries: Callable[[Path], Path]) -> Iterator[None]:
    """Layer by layer. `libraries` has that of each source. Raises `ValueError` if a product is not like the plain."""
    pages = LargePages()
    for layer in packed_layers(model):
        if not isinstance(layer.product, IN_PANELS):
            plain = layer.product.plain
            layer.product = _in_panels(plain, libraries(plain.source), pages)
            del plain
            yield
    give_back_free()


def lay_out_for_torch(model: Any) -> None:
    """What is plain, or was laid out in panels."""
    for layer in packed_layers(model):
        if not isinstance(layer.product, OF_TORCH):
            layer.product = layer.product.plain.for_torch()
    give_back_free()


def _in_panels(plain: PlainProduct, library: Path, pages: LargePages) -> Product:
    made = plain.in_panels(library, pages.empty)
    rows = torch.randn(31, plain.inputs, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found, wanted = torch.cat([made(rows[:1]), made(rows[1:])]), plain(rows)
        size = float(wanted.nan_to_num(0, 0, 0).abs().max())
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * size, equal_nan=True):
            raise ValueError("a product of our own library is not what torch says")
    return made


def weight_of(module: Any) -> Any:
    """As `[out, in]`; None if this is no linear layer."""
    from transformers.pytorch_utils import Conv1D

    if type(module) is torch.nn.Linear:
        return module.weight
    return module.weight.T if type(module) is Conv1D else None


def fits(weight: Any) -> bool:
    return weight.dtype is torch.float32 and weight.numel() >= SMALLEST


class PackedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Takes the place of a linear layer. Its `weight` has the shape and type of the old one, but usually no content."""

    def __init__(self, linear: Any, product: Product, *, keep: bool) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_of(linear).shape
        self.weight = linear.weight if keep else torch.nn.Parameter(linear.weight.to("meta"), requires_grad=False)
        self.bias = linear.bias
        self.product = product
        self._named: tuple[Any, int] = (None, 0)

    def forward(self, x: Any) -> Any:
        if operators.traced(x):  # a trace holds tensors and operators only; `operators.py` says what names this one
            return operators.linear(x, *self._named, self.out_features)
        return self.product(x)

    def named(self, model: Any, number: int) -> None:
        """What the operator in a trace is to call this one."""
        self._named = (model, number)
