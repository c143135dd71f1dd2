"""What llama.cpp, its HTTP side and its process can go wrong with, in the words of the contract.

The only place of this engine that translates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from drivetrain.core.errors import (
    ContextOverflow,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    MissingExtra,
    OutOfMemory,
    no_file_left,
)
from drivetrain.engines.base.error_text import clean, one_line


class ProcessDied(Exception):
    """The child process is gone. `lines` are the last that it said."""

    def __init__(self, how: str, lines: Sequence[str]) -> None:
        super().__init__(how)
        self.lines = tuple(lines)


class ServerRefused(Exception):
    """The server answered with an error: llama.cpp's own type name, its message and its figures."""

    def __init__(self, status: int, kind: str, message: str, *, prompt_tokens: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.prompt_tokens = prompt_tokens
        self.limit = limit

    @staticmethod
    def parse(status: int, body: bytes) -> ServerRefused:
        try:
            error = json.loads(body)["error"]
            return ServerRefused(
                int(error.get("code", status)),
                str(error.get("type", "")),
                str(error.get("message", "")),
                prompt_tokens=int(error.get("n_prompt_tokens", 0)),
                limit=int(error.get("n_ctx", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return ServerRefused(status, "", f"status {status}")


_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate|cannot allocate|failed to allocate|not enough memory|bad_alloc|alloc_failed"
    r"|unable to allocate|could not allocate|memory allocation of \d+ bytes failed"
    r"|no kv slot|input is too large|kv cache is full"
    r"|context size has been exceeded",
    re.IGNORECASE,
)
_REASON = re.compile(r"\d[\d.]* E\s+(?:\w+\s+)?[\w:~]+: (?:error loading model: )?(.*)")
_VAGUE = re.compile(r"failed to (?:load model|initialize the context)|exiting due to|failed to read key-value pairs$")

REFUSALS: dict[str, type[DrivetrainError]] = {
    "invalid_request_error": InvalidRequest,
    "exceed_context_size_error": ContextOverflow,
    "authentication_error": EngineFailed,
    "permission_error": EngineFailed,
    "not_found_error": EngineFailed,
    "not_supported_error": EngineFailed,
    "server_error": EngineFailed,
    "unavailable_error": EngineFailed,
}
"""llama.cpp's error types. Those of the connection between us and it are our fault, not the caller's."""


def is_out_of_memory(exc: BaseException) -> bool:
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    said = " ".join((str(exc), *(exc.lines if isinstance(exc, ProcessDied) else ())))
    return isinstance(exc, (RuntimeError, OSError, ProcessDied, ServerRefused)) and bool(_OUT_OF_MEMORY.search(said))


def while_running(exc: BaseException) -> DrivetrainError:
    """An error during generation, tokenizing or embedding."""
    if isinstance(exc, DrivetrainError):
        return exc
    if (lacking := no_file_left(exc)) is not None:
        return lacking
    error: DrivetrainError
    if is_out_of_memory(exc):
        error = OutOfMemory(
            "llama.cpp ran out of memory on this request; send a shorter prompt, a smaller max_tokens or a simpler "
            "constraint",
            ended_engine=isinstance(exc, ProcessDied),
        )
    elif isinstance(exc, ServerRefused):
        error = _refusal(exc)
    elif isinstance(exc, ProcessDied):
        error = EngineFailed(f"llama.cpp is not running any more: {one_line(exc)}{_last_words(exc)}")
    elif isinstance(exc, ConnectionRefusedError):
        error = EngineFailed("llama.cpp is not running any more")
    elif isinstance(exc, (OSError, EOFError)):
        error = EngineFailed(f"the connection to llama.cpp broke: {one_line(exc)}")
    else:
        error = EngineFailed(f"llama.cpp failed on this request: {one_line(exc)}")
    error.__cause__ = exc
    return error


def while_loading(exc: BaseException) -> DrivetrainError:
    if isinstance(exc, DrivetrainError):
        return exc
    error: DrivetrainError
    if is_out_of_memory(exc):
        error = OutOfMemory(
            "there is not enough memory to load this model; try a smaller context_length or fewer slots"
        )
    elif isinstance(exc, ImportError):
        error = MissingExtra("the llamacpp engine", extra="llamacpp")
    elif isinstance(exc, ProcessDied):
        if any("No module named 'xllamacpp'" in line for line in exc.lines):
            error = MissingExtra("the llamacpp engine", extra="llamacpp")
        else:
            error = LoadFailed(f"the model cannot be loaded: {_reason(exc)}")
    else:
        error = LoadFailed(f"the model cannot be loaded: {one_line(exc)}")
    error.__cause__ = exc
    return error


def _refusal(exc: ServerRefused) -> DrivetrainError:
    if REFUSALS.get(exc.kind) is ContextOverflow:
        return ContextOverflow(
            f"the prompt is {exc.prompt_tokens} tokens, the context is {exc.limit}",
            prompt_tokens=exc.prompt_tokens,
            limit=exc.limit,
            param="prompt",
        )
    if REFUSALS.get(exc.kind) is InvalidRequest:
        param = "constraint" if "grammar" in str(exc) else None
        return InvalidRequest(f"llama.cpp refused this request: {clean(str(exc))}", param=param)
    return EngineFailed(f"llama.cpp failed on this request: {clean(str(exc))}")


def _reason(exc: ProcessDied) -> str:
    """The first log line that says more than that it failed."""
    said = [match[1] for line in exc.lines if (match := _REASON.match(line))]
    telling = [line for line in said if not _VAGUE.search(line)]
    if telling or said:
        return clean((telling or said)[0])
    return clean(f"{exc}{_last_words(exc)}")


def _last_words(exc: ProcessDied) -> str:
    return f" ({clean(exc.lines[-1], 160)})" if exc.lines else ""
