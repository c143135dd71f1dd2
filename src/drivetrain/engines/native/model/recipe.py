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
    """Whether layers are packed, and our own libraries for them built: the programs are the same for all."""
