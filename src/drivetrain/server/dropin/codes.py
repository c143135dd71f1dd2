"""From the error tree to the numbers that both protocols share: an answer of status 200 that says what was wrong."""

from __future__ import annotations

from enum import IntEnum

from drivetrain.core.errors import (
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    InvalidRequest,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
)


class ErrorCode(IntEnum):
    """Those of FastChat's `constants.py`, which DB-GPT took over, that a worker has a use for."""

    INVALID_MODEL = 40301
    PARAM_OUT_OF_RANGE = 40302
    CONTEXT_OVERFLOW = 40303
    ENGINE_OVERLOADED = 42903
    INTERNAL_ERROR = 50001
    CUDA_OUT_OF_MEMORY = 50002
    CONTROLLER_WORKER_TIMEOUT = 50006


_CODES: tuple[tuple[type[DrivetrainError], ErrorCode], ...] = (
    (ContextOverflow, ErrorCode.CONTEXT_OVERFLOW),
    (InvalidRequest, ErrorCode.PARAM_OUT_OF_RANGE),
    (ModelNotFound, ErrorCode.INVALID_MODEL),
    (Overloaded, ErrorCode.ENGINE_OVERLOADED),
    (DeadlineExceeded, ErrorCode.CONTROLLER_WORKER_TIMEOUT),
    (OutOfMemory, ErrorCode.CUDA_OUT_OF_MEMORY),
)
"""The first one that fits; anything else is the engine's or ours."""


def code_of(error: DrivetrainError) -> int:
    found = (code for kind, code in _CODES if isinstance(error, kind))
    return int(next(found, ErrorCode.INTERNAL_ERROR))
