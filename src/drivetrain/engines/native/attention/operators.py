"""Our products and our attention as torch operators of a known shape, which a trace does not look into.

A trace holds only tensors and numbers. It names the model by a tensor that it takes as an input, and a product of the
model by its number: so what is compiled in one process serves in another, and for several models at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

_numbers = itertools.count()
_known: WeakValueDictionary[int, Operands] = WeakValueDictionary()

_library = torch.library.Library("drivetrain", "DEF")
_library.define("linear(Tensor x, Tensor model, int number, int out_features) -> Tensor")
_library.define("attend(Tensor query, Tensor key, Tensor value, Tensor model, int layer) -> Tensor")


class Operands:
    """What the operators work with in one model. Traces name it by its `model`, as long as it lives."""

    def __init__(self, products: Sequence[Callable[[Any], Any]], attention: Any) -> None:
        number = next(_numbers)
        self.model = torch.tensor(number)
        self.products = products
        self.attention = attention
        self.failure: Exception | None = None
        """What an operator raised: a compiled program tells no more than that one of them did."""
        _known[number] = self

    def kept(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as exc:
            self.failure = exc
            raise


def traced(x: Any) -> bool:
    """Whether this is a stand-in for a tensor, in a trace."""
    return type(x) is not torch.Tensor and isinstance(x, torch._subclasses.FakeTensor)


def linear(x: Any, model: Any, number: int, out_features: int) -> Any:
    return torch.ops.drivetrain.linear(x, model, number, out_features)


def attend(query: Any, key: Any, value: Any, model: Any, layer: int) -> Any:
    return torch.ops.drivetrain.attend(query, key, value, model, layer)


def _linear(x: Any, model: Any, number: int, out_features: int) -> Any:
    operands = _known[model.item()]
    return operands.kept(lambda: operands.products[number](x))


def _attend(query: Any, key: Any, value: Any, model: Any, layer: int) -> Any:
    operands = _known[model.item()]
    return operands.kept(lambda: operands.attention.attend(layer, query, key, value))


def _linear_shape(x: Any, model: Any, number: int, out_features: int) -> Any:
    return x.new_empty(*x.shape[:-1], out_features)


def _attend_shape(query: Any, key: Any, value: Any, model: Any, layer: int) -> Any:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_library.impl("linear", _linear, "CompositeExplicitAutograd")
_library.impl("attend", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("drivetrain::linear", _linear_shape, lib=_library)
torch.library.register_fake("drivetrain::attend", _attend_shape, lib=_library)
