"""Where the pieces are put together: engines, store and worker. Nothing below imports it.

What opens a model is imported when it is first used: flags need the engines and the settings alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from drivetrain.assembly.engines import ENGINES as ENGINES
from drivetrain.assembly.engines import SETTINGS as SETTINGS
from drivetrain.engines.base.kind import EngineKind as EngineKind

if TYPE_CHECKING:
    from drivetrain.assembly.choosing import EngineChoice as EngineChoice
    from drivetrain.assembly.choosing import check_engine as check_engine
    from drivetrain.assembly.choosing import choose_engine as choose_engine
    from drivetrain.assembly.choosing import refuse_unused as refuse_unused
    from drivetrain.assembly.opening import Opening as Opening
    from drivetrain.assembly.opening import Parts as Parts
    from drivetrain.assembly.opening import Worker as Worker
    from drivetrain.assembly.opening import is_fake as is_fake
    from drivetrain.assembly.opening import is_remote as is_remote
    from drivetrain.assembly.opening import name_of as name_of
    from drivetrain.assembly.opening import open_parts as open_parts
    from drivetrain.assembly.opening import prepare as prepare
    from drivetrain.assembly.opening import remote_spec as remote_spec
    from drivetrain.assembly.opening import spec_of as spec_of

_PLACES = {
    **dict.fromkeys(("EngineChoice", "check_engine", "choose_engine", "refuse_unused"), "drivetrain.assembly.choosing"),
    **dict.fromkeys(
        (
            "Opening",
            "Parts",
            "Worker",
            "is_fake",
            "is_remote",
            "name_of",
            "open_parts",
            "prepare",
            "remote_spec",
            "spec_of",
        ),
        "drivetrain.assembly.opening",
    ),
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'drivetrain.assembly' has no attribute {name!r}")
    return getattr(importlib.import_module(place), name)
