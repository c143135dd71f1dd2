"""Every way a request, a load or a setting can fail: one tree, free of HTTP and of any engine.

    DrivetrainError
    ├── InvalidRequest            the caller can fix it; `param` names the field
    │   ├── Unsupported           this model or engine cannot do what the field asks
    │   └── ContextOverflow       prompt plus answer do not fit; says both and the limit
    ├── InvalidSetting            a flag, environment variable, TOML key or file is unusable
    ├── Overloaded                the queue is full; `retry_after_s` says when to come back
    │   └── NotReady              loading, draining or stopped, or no file can be opened
    │       └── NotLoaded         the model failed to load, or there is no room for it; it will be tried again
    ├── DeadlineExceeded          `timeout_s` passed
    ├── Cancelled                 the caller went away, stopped reading, or the worker was closed
    ├── EngineFailed              the engine broke; this request is lost, the next one may work
    │   ├── OutOfMemory           it ran out of memory; the request's share is freed
    │   └── DeviceLost            the device is unusable from this process; only a new process helps
    ├── ModelNotFound             no such name, path or id
    └── LoadFailed                the model is there, but cannot be loaded
        ├── MissingExtra          a package is not installed; `extra` names what to install
        ├── NotStored             the store cannot be written, so what is made of the weights has no place
        └── UnfitEngine           nothing is wrong with the model, but this engine cannot run it; another one may

An error that ends a request carries in `partial` what was done before it: the choices, finished or not, and the usage
so far. `request_id` is set once a worker has registered the request. Messages say what was wrong and what to do about
it; they never contain the server's paths, addresses or the prompts of other requests.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ClassVar, Self

from drivetrain.core.extras import install_command

if TYPE_CHECKING:
    from drivetrain.core.results import Partial


class DrivetrainError(Exception):
    """The root. `code` is a stable name for machines, `param` the field or setting at fault."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.partial: Partial | None = None
        self.request_id: str | None = None

    def again(self) -> Self:
        """A copy that was never raised: a raised error keeps alive everything in the frames of its traceback."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


class InvalidRequest(DrivetrainError):
    code = "invalid_request"


class Unsupported(InvalidRequest):
    code = "unsupported"


class ContextOverflow(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, message: str, *, prompt_tokens: int, limit: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class InvalidSetting(DrivetrainError):
    code = "invalid_setting"


class Overloaded(DrivetrainError):
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(Overloaded):
    code = "not_ready"


class NotLoaded(NotReady):
    code = "not_loaded"


class DeadlineExceeded(DrivetrainError):
    code = "deadline_exceeded"


class Cancelled(DrivetrainError):
    code = "cancelled"


class EngineFailed(DrivetrainError):
    code = "engine_error"


class OutOfMemory(EngineFailed):
    """`ended_engine`: the engine died of it, so it may have been any of its requests."""

    code = "out_of_memory"

    def __init__(self, message: str, *, param: str | None = None, ended_engine: bool = False) -> None:
        super().__init__(message, param=param)
        self.ended_engine = ended_engine


class DeviceLost(EngineFailed):
    code = "device_lost"


class ModelNotFound(DrivetrainError):
    code = "model_not_found"


class LoadFailed(DrivetrainError):
    code = "load_failed"


class MissingExtra(LoadFailed):
    code = "missing_extra"

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} needs a package that is not installed; run: {install_command(extra)}")
        self.extra = extra


class NotStored(LoadFailed):
    """Has no code of its own: for whoever asked for the model, it was not loaded."""


class UnfitEngine(LoadFailed):
    """`why` is the reason alone, for a caller that has another engine to try and words its own sentence."""

    code = "unfit_engine"

    def __init__(self, message: str, *, why: str) -> None:
        super().__init__(message)
        self.why = why


def no_file_left(exc: BaseException) -> NotReady | None:
    """The typed error if `exc` says that this process or machine can open no more files, connections included."""
    if not isinstance(exc, OSError) or exc.errno not in {errno.EMFILE, errno.ENFILE}:
        return None
    error = NotReady("the server can open no more files for this request; try again, or raise its limit (ulimit -n)")
    error.__cause__ = exc
    return error


def bug(exc: BaseException) -> DrivetrainError:
    """An unexpected exception, ours or a library's, as the typed error that ends a request."""
    if (lacking := no_file_left(exc)) is not None:
        return lacking
    error = EngineFailed(f"the worker failed on this request: {type(exc).__name__}")
    error.__cause__ = exc
    return error


def one_line(text: str, limit: int = 200) -> str:
    """Someone else's error text, fit for the middle of a line of ours."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def drop_frames(error: BaseException) -> None:
    """For an error that is raised no further: its frames would keep the request and its prompt alive."""
    link: BaseException | None = error
    dropped: list[BaseException] = []
    while link is not None and link not in dropped:
        dropped.append(link)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
