"""Fewer and larger matrix products: projections that read the same input become one.

The modules keep their names and places, so the model's class need not know: the first one called with an input computes
for all, and the others return their share of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def fuse_projections(model: Any) -> int:
    """Join linear layers that stand side by side, in place. Returns the number of products saved per pass."""
    saved = 0
    for parent in list(model.modules()):
        for names in SIBLINGS:
            layers = [getattr(parent, name, None) for name in names]
            if _can_join(layers):
                joint = Joint(layers)
                for i, name in enumerate(names):
                    setattr(parent, name, Share(joint, i))
                saved += len(names) - 1
    return saved


class _Last:
    """The last output and its input. Not a module: those are slow to write to."""

    __slots__ = ("input", "shares")

    def __init__(self) -> None:
        self.input: Any = None
        self.shares: dict[int, Any] = {}


class Joint(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """One linear layer in place of several. Holds its last output until every share of it was taken."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        first = layers[0]
        self.sizes = [layer.out_features for layer in layers]
        self.linear = torch.nn.Linear(first.in_features, sum(self.sizes), bias=first.bias is not None, device="meta")
        self.linear.weight = _joined([layer.weight for layer in layers])
        if first.bias is not None:
            self.linear.bias = _joined([layer.bias for layer in layers])
        self._last = _Last()

    def share(self, index: int, x: Any) -> Any:
        last = self._last
        if x is not last.input or index not in last.shares:
            last.shares = dict(enumerate(torch.split_with_sizes(self.linear(x), self.sizes, -1)))
            last.input = x
        found = last.shares.pop(index)
        if not last.shares:
            last.input = None
        return found


class Share(torch.nn.Module):  # type: ignore[misc]  # as above
    """Takes the place of one of the joined linear layers."""

    def __init__(self, joint: Joint, index: int) -> None:
        super().__init__()
        self.joint = joint
        self._index = index
        self.in_features, self.out_features = joint.linear.in_features, joint.sizes[index]

    @property
    def weight(self) -> Any:
        return self.joint.linear.weight.split(self.joint.sizes)[self._index]

    @property
    def bias(self) -> Any:
        bias = self.joint.linear.bias
        return None if bias is None else bias.split(self.joint.sizes)[self._index]

    def forward(self, x: Any) -> Any:
        return self.joint.share(self._index, x)


def _can_join(layers: Sequence[Any]) -> bool:
    return all(type(layer) is torch.nn.Linear for layer in layers) and len(set(_kinds(layers))) == 1


def _kinds(layers: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return ((layer.in_features, layer.bias is None, layer.weight.dtype, layer.weight.device) for layer in layers)


def _joined(parts: Sequence[Any]) -> Any:
    return torch.nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)
