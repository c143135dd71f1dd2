"""The work of a linear layer, by whichever library has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Product(Protocol):
    def __call__(self, x: Any) -> Any:
        """The product with the layer's weight, and the bias after it."""
        ...

    @property
    def plain(self) -> PlainProduct:
        """The same with a weight that is laid out for no library."""
        ...


class PlainProduct(Product, Protocol):
    """Correct and slow. `source` is that of our own library for it."""

    source: Path

    @property
    def inputs(self) -> int: ...

    def for_torch(self) -> Product:
        """By a library of torch's, which any machine has."""
        ...

    def in_panels(self, library: Path, empty: Callable[..., Any]) -> Product:
        """By our own library. `empty` makes the tensor for the weight."""
        ...
