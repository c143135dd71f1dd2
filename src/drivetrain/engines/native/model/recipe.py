"""What compiled programs are made of, as it crosses to the process that makes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    path: str
    trust_remote_code: bool
    dtype: str
    num_threads: int
    with_attention: bool
    """Whether our own library for it is built."""
    with_products: bool
    """The same, with those of either kind: the programs are the same for both."""
