"""Small C++ libraries of our own. The process that compiles the steps builds them, since there is a compiler then."""

from __future__ import annotations

from pathlib import Path


def build(source: Path) -> Path:
    """The library, in the cache of torch's compiler. Raises what that raises."""
    from torch._inductor.codecache import CppCodeCache

    return Path(CppCodeCache.load(source.read_text("utf-8"), extra_flags=("-ffp-contract=fast",))._name)
