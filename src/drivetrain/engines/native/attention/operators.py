"""Our products and our attention as torch operators of a known shape, which a trace does not look into.

A trace holds only tensors and numbers, so an operator names the object that does its work by a number.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch

_numbers = itertools.count()
_known: WeakValueDictionary[int, Any] = WeakValueDictionary()

_library = torch.library.Library("drivetrain", "DEF")
_library.define("linear(Tensor x, int handle, int out_features) -> Tensor")
_library.define("attend(Tensor query, Tensor key, Tensor value, int handle, int layer) -> Tensor")


def handle(of: Any) -> int:
    """A number that stands for this object in traces, as long as it lives.

    `linear` calls it with `x`, `attend` calls its `attend(layer, query, key, value)`.
    """
    number = next(_numbers)
    _known[number] = of
    return number


def traced(x: Any) -> bool:
    """Whether this is a stand-in for a tensor, in a trace."""
    return type(x) is not torch.Tensor and isinstance(x, torch._subclasses.FakeTensor)


def linear(x: Any, handle: int, out_features: int) -> Any:
    return torch.ops.drivetrain.linear(x, handle, out_features)


def attend(query: Any, key: Any, value: Any, handle: int, layer: int) -> Any:
    return torch.ops.drivetrain.attend(query, key, value, handle, layer)


def _linear(x: Any, handle: int, out_features: int) -> Any:
    return _known[handle](x)


def _attend(query: Any, key: Any, value: Any, handle: int, layer: int) -> Any:
    return _known[handle].attend(layer, query, key, value)


def _linear_shape(x: Any, handle: int, out_features: int) -> Any:
    return x.new_empty(*x.shape[:-1], out_features)


def _attend_shape(query: Any, key: Any, value: Any, handle: int, layer: int) -> Any:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_library.impl("linear", _linear, "CompositeExplicitAutograd")
_library.impl("attend", _attend, "CompositeExplicitAutograd")
torch.library.register_fake("drivetrain::linear", _linear_shape, lib=_library)
torch.library.register_fake("drivetrain::attend", _attend_shape, lib=_library)
