"""Translates what torch and transformers raise into the contract's errors. Nothing else here does."""

from __future__ import annotations

import errno
import gc
import re
import traceback

from drivetrain.core.errors import DeviceLost, DrivetrainError, EngineFailed, LoadFailed, MissingExtra, OutOfMemory
from drivetrain.engines.base.error_text import clean, one_line

_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|bad_alloc|alloc_failed",
    re.IGNORECASE,
)

_OS_ERROR = re.compile(r"\(os error (\d+)\)")

_DEVICE_LOST = re.compile(
    r"\b(?:CUDA|HIP|NCCL|Triton)\b.{0,80}?"
    r"(?:device-side assert|illegal memory access|illegal instruction|illegal address|misaligned address"
    r"|unspecified launch failure|launch timed out|invalid program counter|hardware stack error"
    r"|\bECC\b|NVLink error|unhandled (?:cuda|hip|system) error|unknown error)",
    re.IGNORECASE | re.DOTALL,
)
"""After one of these, the process's context on the device is gone, and every later call fails, loading included. The
library's name must come first, so that no text of a model or a user matches."""


def is_device_lost(exc: BaseException) -> bool:
    return isinstance(exc, RuntimeError) and _DEVICE_LOST.search(str(exc)) is not None


def is_out_of_memory(exc: BaseException) -> bool:
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    return isinstance(exc, (RuntimeError, OSError)) and _OUT_OF_MEMORY.search(str(exc)) is not None


def is_disk_full(exc: BaseException) -> bool:
    return os_error_number(exc) in {errno.ENOSPC, errno.EDQUOT}


def os_error_number(exc: BaseException) -> int | None:
    """What the system said, also where a library in Rust repeats it in an error of its own."""
    if isinstance(exc, OSError):
        return exc.errno
    found = _OS_ERROR.search(str(exc))
    return int(found[1]) if found else None


def while_running(exc: BaseException) -> DrivetrainError:
    """For an error while the model computes. Frees what the failed frames held."""
    if isinstance(exc, DrivetrainError):
        return exc
    traceback.clear_frames(exc.__traceback__)
    if is_device_lost(exc):
        error: DrivetrainError = _device_lost(exc)
    elif is_out_of_memory(exc):
        error = OutOfMemory(
            "the model ran out of memory on this request; send a shorter prompt or a smaller max_tokens"
        )
    else:
        error = EngineFailed(f"the model failed on this request: {one_line(exc)}")
    error.__cause__ = exc
    return error


def while_loading(exc: BaseException, *, engine: str) -> DrivetrainError:
    """`engine` is also the name of its extra. Frees what the failed frames held."""
    _clear_frames(exc)
    if isinstance(exc, DrivetrainError):
        return exc
    error: DrivetrainError
    if is_device_lost(exc):
        error = _device_lost(exc)
    elif is_out_of_memory(exc):
        error = OutOfMemory("there is not enough memory to load this model; try a smaller dtype or another device")
    elif isinstance(exc, ImportError):
        error = _missing(exc, engine)
    elif "trust_remote_code" in str(exc) or "custom code" in str(exc):
        error = LoadFailed(
            "this model asks to run code of its own, which is off; if you trust its author, set trust_remote_code"
        )
    elif "above report" in str(exc):  # the report is in the library's log; the message alone says nothing
        error = LoadFailed(
            "the weights cannot be brought into the form of this model's class: some are missing or have another shape;"
            " pull or copy the model again"
        )
    elif is_disk_full(exc):
        error = LoadFailed("the disk is full, so what is made of the weights has no place; free some space")
    elif type(exc).__name__ == "StrictDataclassFieldValidationError":
        error = LoadFailed(f"config.json has a value that its model type cannot have ({clean(str(exc))}); correct it")
    elif type(exc).__name__ == "SafetensorError":
        error = LoadFailed(f"the weights are damaged ({one_line(exc)}); pull or copy the model again")
    else:
        error = LoadFailed(f"the model cannot be loaded ({one_line(exc)}); pull or copy it again")
    error.__cause__ = exc
    return error


def _device_lost(exc: BaseException) -> DeviceLost:
    return DeviceLost(f"the device has failed, and this process cannot use it any more: {one_line(exc)}")


def _clear_frames(exc: BaseException | None) -> None:
    """Its causes' too: a frame holds what its function made, which can be a whole model."""
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        traceback.clear_frames(exc.__traceback__)
        exc = exc.__cause__ or exc.__context__


def _missing(exc: ImportError, engine: str) -> DrivetrainError:
    if exc.name in {"torch", "transformers", "tokenizers", "safetensors", "sentencepiece", "gguf"}:
        return MissingExtra(f"the {engine} engine", extra=engine)
    if "torchvision" in str(exc).lower():
        return MissingExtra("the processor of this model (torchvision)", extra="vision")
    return LoadFailed(f"this model needs a package that is not installed, or another version of it: {one_line(exc)}")


def free_cached_memory() -> None:
    """After an out-of-memory error: collect what the error kept alive, then the allocator's cache."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


def again(error: DrivetrainError) -> DrivetrainError:
    """The same error for another request: each has its own `partial`."""
    copy = type(error)(error.message, param=error.param)
    copy.__cause__ = error.__cause__
    return copy
