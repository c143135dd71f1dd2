"""Small C++ libraries of our own. The process that compiles the steps builds them, since there is a compiler then."""

from __future__ import annotations

import re
from pathlib import Path


def build(source: Path) -> Path:
    """The library, in the cache of torch's compiler. Raises what that raises."""
    from torch._inductor.codecache import CppCodeCache

    return Path(CppCodeCache.load(_with_includes(source), extra_flags=("-ffp-contract=fast",))._name)


def _with_includes(source: Path) -> str:
    """The text, with the files beside it that it includes: torch's compiler takes a text, which is also its key."""
    text = source.read_text("utf-8")
    return re.sub(
        r'^#include "(.+)"$', lambda found: _with_includes(source.with_name(found[1])), text, flags=re.MULTILINE
    )
