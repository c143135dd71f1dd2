"""Where the pieces are put together: engines, store and worker. Nothing below imports it."""

from drivetrain.assembly.engines import ENGINES, EngineChoice, EngineKind, check_engine, choose_engine, refuse_unused
from drivetrain.assembly.opening import (
    Opening,
    Parts,
    Worker,
    is_fake,
    is_remote,
    name_of,
    open_parts,
    remote_spec,
    spec_of,
)

__all__ = [
    "ENGINES",
    "EngineChoice",
    "EngineKind",
    "Opening",
    "Parts",
    "Worker",
    "check_engine",
    "choose_engine",
    "is_fake",
    "is_remote",
    "name_of",
    "open_parts",
    "refuse_unused",
    "remote_spec",
    "spec_of",
]
