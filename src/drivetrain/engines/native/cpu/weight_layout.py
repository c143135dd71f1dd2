"""Linear layers for CPUs, with weights that are laid out once for their product: for oneDNN's, and for our own where it
was built (`panels.py`).

With few rows, as in decoding, they are two to four times as fast as plain ones, and faster still with 8-bit weights
(`quantizing.py`). Only for models that compute in float32; others are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from drivetrain.engines.native.attention import operators
from drivetrain.engines.native.cpu.large_pages import LargePages
from drivetrain.engines.native.cpu.panels import PanelProduct
from drivetrain.engines.native.cpu.quantizing import Int8Product

SMALLEST = 64 * 64
"""Weights below this are left alone: the call costs more than the product."""


class Product(Protocol):
    """The work of a linear layer."""

    def __call__(self, x: Any) -> Any: ...

    @property
    def operand(self) -> Callable[[Any], Any]:
        """What the operator in a trace calls."""
        ...

    def traced(self, x: Any, model: Any, number: int) -> Any:
        """The same in a trace, which holds tensors and operators only. `operators.py` says what names the operand."""
        ...


def pack_linear_layers(model: Any, *, quantize: str = "none", only_traced: bool = False) -> int:
    """Replace the linear layers in place and return their number. Weights shared with embeddings stay for those.

    In float32, the weights stay as they came until it is known for which product they are to be laid out. With
    `only_traced`, the model can only be traced.
    """
    if model.device.type != "cpu" or (quantize == "none" and not torch.backends.mkldnn.is_available()):
        return 0
    lay_out = Int8Product if quantize == "int8" else PlainProduct
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = weight_of(child)
            if weight is not None and fits(weight):
                product = lay_out(weight.to("meta") if only_traced else weight, child.bias)
                setattr(parent, name, PackedLinear(child, product, keep=id(child.weight) in shared))
                num_packed += 1
    return num_packed


def packed_layers(model: Any) -> list[PackedLinear]:
    return [module for module in model.modules() if isinstance(module, PackedLinear)]


def takes_panels(model: Any) -> bool:
    return any(isinstance(layer.product, PlainProduct | OneDnnProduct) for layer in packed_layers(model))


def lay_out_in_panels(model: Any, library: Path) -> Iterator[None]:
    """Layer by layer. Raises `ValueError` if our products are not the same as those before."""
    pages = LargePages()
    for layer in packed_layers(model):
        if isinstance(product := layer.product, PlainProduct | OneDnnProduct):
            layer.product = _in_panels(product, library, pages)
            yield


def lay_out_for_onednn(model: Any) -> None:
    """What is as it came, or was laid out in panels."""
    for layer in packed_layers(model):
        if isinstance(product := layer.product, PlainProduct | PanelProduct):
            layer.product = OneDnnProduct(product.weight, product.bias)


def _in_panels(product: PlainProduct | OneDnnProduct, library: Path, pages: LargePages) -> PanelProduct:
    weight = product.weight
    made = PanelProduct(library, weight, product.bias, pages.empty)
    generator = torch.Generator().manual_seed(0)
    for num_rows in (1, 30):
        rows = torch.randn(num_rows, weight.shape[1], generator=generator)
        with torch.inference_mode():
            found, wanted = made(rows), product(rows)
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


class PlainProduct:
    """The product with a weight `[out, in]` as it came, and the bias after it."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight = weight.detach()
        self.bias = bias

    def __call__(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight, self.bias)

    @property
    def operand(self) -> Callable[[Any], Any]:
        return self

    def traced(self, x: Any, model: Any, number: int) -> Any:
        return operators.linear(x, model, number, len(self.weight))


class OneDnnProduct:
    """The same in float32, with a weight that is laid out."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.bias = bias
        self._out_features = len(weight)
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)

    @property
    def weight(self) -> Any:
        return self._laid_out.to_dense()

    def __call__(self, x: Any) -> Any:
        num_rows = x.numel() // x.shape[-1]
        missing = rounded(num_rows) - num_rows
        if not missing:
            return self._product(x)
        rows = torch.nn.functional.pad(x.reshape(num_rows, -1), (0, 0, 0, missing))
        return self._product(rows)[:num_rows].view(*x.shape[:-1], -1)

    @property
    def operand(self) -> Callable[[Any], Any]:
        return self

    def traced(self, x: Any, model: Any, number: int) -> Any:
        return operators.linear(x, model, number, self._out_features)

    def _product(self, x: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise(x, self._laid_out, self.bias, "none", [], "")


def rounded(num_rows: int) -> int:
    """oneDNN keeps a kernel of some hundred kB for each number of rows it has met, and chunks have any number."""
    step = 1 if num_rows <= 8 else 4 if num_rows <= 64 else 32
    return -(-num_rows // step) * step


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
        return self.product.traced(x, *self._named) if operators.traced(x) else self.product(x)

    def operand(self, x: Any) -> Any:
        """What the operator in a trace calls; the product may have changed since."""
        return self.product.operand(x)

    def named(self, model: Any, number: int) -> None:
        """What the operator in a trace is to call this one; see `operators.py`."""
        self._named = (model, number)
