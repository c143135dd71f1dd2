"""On a CPU: linear layers whose weights are laid out once for oneDNN, where the plain ones are read as they lie.

With few rows, which is what decoding has, that is worth two to three times the speed. Only where the model computes in
float32; elsewhere nothing is changed.
"""

from __future__ import annotations

from typing import Any

import torch

SMALLEST = 64 * 64
"""Weights below this are left alone: the call costs more than the product."""


def pack_linear_layers(model: Any) -> int:
    """Replace the linear layers in place; the number of them. Weights that embeddings share stay for those."""
    if model.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return 0
    shared = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and _fits(child.weight):
                setattr(parent, name, PackedLinear(child, keep=id(child.weight) in shared))
                num_packed += 1
    return num_packed


def _fits(weight: Any) -> bool:
    return weight.dtype is torch.float32 and weight.numel() >= SMALLEST


class PackedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Stands in for an `nn.Linear`. Its `weight` has the shape and type of the old one, and mostly no content."""

    def __init__(self, linear: Any, *, keep: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight if keep else torch.nn.Parameter(linear.weight.to("meta"), requires_grad=False)
        self.bias = linear.bias
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, x: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise(x, self._laid_out, self.bias, "none", [], "")
