"""From the error tree to the numbers that both protocols share, sent in an answer with status 200."""

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
    """From FastChat's `constants.py`, which DB-GPT adopted: those that a worker needs."""

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
"""The first match counts; anything else is an internal error."""


def code_of(error: DrivetrainError) -> int:
    matches = (code for kind, code in _CODES if isinstance(error, kind))
    return int(next(matches, ErrorCode.INTERNAL_ERROR))
