"""Random numbers that depend on a request's seed and a position, and on nothing else. No tensors here."""

from __future__ import annotations

from hashlib import blake2b

_BITS = 52
"""As many as a float holds below 1 with one to spare, so that a product with it stays below the other factor."""


_DRAW = b"drivetrain-draw"
EXCLUSION = b"drivetrain-xtc"
"""Whether XTC acts: a number of its own, so that with it or without it the draws have the same ones."""


def unit(seed: int, position: int, purpose: bytes = _DRAW) -> float:
    """A number in [0, 1) for one purpose at one position, the same on every machine."""
    message = (seed & (2**64 - 1)).to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = blake2b(message, digest_size=8, person=purpose).digest()
    return float(int.from_bytes(digest, "little") >> (64 - _BITS)) / float(1 << _BITS)
