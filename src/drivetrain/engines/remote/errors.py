"""Translates what goes wrong between us and an upstream into the contract's errors. Nothing else here does."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import ssl
import time
from collections.abc import Mapping
from typing import Any

from drivetrain.core.errors import (
    ContextOverflow,
    DeadlineExceeded,
    DrivetrainError,
    EngineFailed,
    InvalidRequest,
    LoadFailed,
    ModelNotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
    no_file_left,
)
from drivetrain.engines.base.error_text import clean
from drivetrain.engines.remote.address import KEY_VARIABLE, Key
from drivetrain.http.parser import (
    Broken as Broken,
)  # the upstream ended early, fell silent, or does not keep to its API
from drivetrain.http.parser import TooLong as TooLong  # that says nothing of other requests; asking again gives as much

MAX_RETRY_AFTER_S = 600.0
_OVERFLOWS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_WORDS = re.compile(
    r"maximum context length|context (?:size|length|window) (?:has been |is )?exceeded|too large to process",
    re.IGNORECASE,
)
_OURS = {
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "logprobs",
    "structured_outputs": "constraint",
    "structured_outputs.grammar": "constraint",
}


class Unreadable(Broken):
    """A whole answer came that the API of that kind of server does not have."""


class Refused(Exception):
    """The upstream answered with an error: the status and content of its answer."""

    def __init__(
        self,
        status: int,
        message: str = "",
        *,
        code: str = "",
        param: str | None = None,
        retry_after_s: float = 1.0,
        figures: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.figures = figures
        """Tokens of the prompt and of the context, from an overflow that reports them."""

    @classmethod
    def parse(cls, status: int, headers: Mapping[str, str], body: bytes, key: Key) -> Refused:
        found: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(body)
        return cls.of_json(status, found, key, retry_after_s=_retry_after(headers.get("retry-after", "")))

    @classmethod
    def of_json(cls, status: int, found: Any, key: Key, *, retry_after_s: float = 1.0) -> Refused:
        """`found` is a body of any of the shapes that servers use, or None."""
        error: Any = found
        for name in ("error", "detail", "message"):
            if isinstance(error, dict) and error.get(name) and not isinstance(error.get("message"), str):
                error = error[name]
        if not isinstance(error, dict):
            error = {"message": error if isinstance(error, str) else ""}
        codes = [error.get("code"), error.get("type")]
        param = error.get("param")
        return cls(
            status,
            clean(key.hide(str(error.get("message") or ""))),
            code=next((c for c in codes if isinstance(c, str)), ""),
            param=param if isinstance(param, str) and len(param) <= 100 else None,
            retry_after_s=retry_after_s,
            figures=(_whole(error.get("n_prompt_tokens")), _whole(error.get("n_ctx"))),
        )


def may_try_again(exc: BaseException) -> bool:
    """Before an answer began: whether another upstream, or the same one later, may do better."""
    if isinstance(exc, Refused):
        return not _overflows(exc) and (exc.status in {408, 429} or exc.status >= 500)
    return isinstance(exc, (Broken, OSError, EOFError)) and not isinstance(exc, TooLong)


def may_be_the_request(exc: BaseException) -> bool:
    """A plain 500 may be the fault of the upstream or of this very request, which could then bring down one upstream
    after another. So it is not sent to the same one again, and counts for less."""
    return isinstance(exc, Refused) and exc.status == 500


def may_have_died_of_it(exc: BaseException) -> bool:
    """Whether the upstream had the request when the connection broke."""
    return isinstance(exc, (Broken, EOFError, ConnectionResetError, BrokenPipeError))


def is_fault(exc: BaseException) -> bool:
    """Whether the upstream is to blame. One that is full, refuses a request or sends too much is not."""
    if isinstance(exc, Refused):
        return exc.status >= 500 and exc.status not in {503, 504} and not _overflows(exc)
    if no_file_left(exc) is not None:
        return False  # we are the ones out of files
    return isinstance(exc, (Broken, OSError, EOFError)) and not isinstance(exc, TooLong)


def while_running(exc: BaseException) -> DrivetrainError:
    if isinstance(exc, DrivetrainError):
        return exc
    if (lacking := no_file_left(exc)) is not None:
        return lacking
    if isinstance(exc, Refused):
        error = _refusal(exc)
    elif isinstance(exc, Broken):
        error = EngineFailed(f"the upstream's answer broke off: {exc}")
    elif isinstance(exc, MemoryError):
        error = OutOfMemory("there is no memory left for this answer")
    elif isinstance(exc, (OSError, EOFError)):
        error = EngineFailed(f"the connection to the upstream broke: {reason(exc)}")
    else:
        error = EngineFailed(f"the upstream's answer could not be read: {type(exc).__name__}")
    error.__cause__ = exc
    return error


def while_loading(exc: BaseException) -> DrivetrainError:
    if isinstance(exc, Refused) and exc.status in {401, 403}:
        error: DrivetrainError = LoadFailed(f"the upstream refuses the key; put the right one into {KEY_VARIABLE}")
    elif isinstance(exc, Refused) and exc.status == 404:
        error = ModelNotFound(f"the upstream knows no such model or path{_detail(exc)}", param="model")
    elif isinstance(exc, DrivetrainError):
        return exc
    elif isinstance(exc, Refused):
        error = LoadFailed(f"the upstream answers {exc.status}{_detail(exc)}")
    elif isinstance(exc, Unreadable):
        error = LoadFailed(f"this server does not speak OpenAI's API: {exc}")
    elif isinstance(exc, Broken):
        error = LoadFailed(f"the upstream did not report what it can do: {exc}")
    else:
        error = LoadFailed(f"the upstream cannot be reached: {reason(exc)}")
    error.__cause__ = exc
    return error


def reason(exc: BaseException) -> str:
    """Without the address, which Python's own messages repeat."""
    if isinstance(exc, TimeoutError):
        return "nobody takes the connection in time"
    if isinstance(exc, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(exc, ssl.SSLError):
        return f"TLS fails ({exc.reason or type(exc).__name__})"
    return type(exc).__name__


def _overflows(exc: Refused) -> bool:
    """llama.cpp answers 500 if a text to embed is longer than its batch."""
    return exc.code in _OVERFLOWS or (exc.status in {400, 500} and _OVERFLOW_WORDS.search(exc.message) is not None)


def _refusal(exc: Refused) -> DrivetrainError:
    if _overflows(exc):
        prompt, limit = exc.figures
        return ContextOverflow(
            exc.message or "prompt and answer do not fit in the upstream's context",
            prompt_tokens=prompt,
            limit=limit,
            param=_OURS.get(exc.param or "", exc.param),
        )
    if exc.code == "out_of_memory":
        return OutOfMemory(f"the upstream ran out of memory{_detail(exc)}")
    if exc.status == 504 or exc.code == "deadline_exceeded":
        return DeadlineExceeded(f"the upstream timed out on this request{_detail(exc)}")
    if exc.status == 429:
        return Overloaded(f"the upstream is full{_detail(exc)}", retry_after_s=exc.retry_after_s)
    if exc.status == 503:
        return NotReady(f"the upstream is not ready{_detail(exc)}", retry_after_s=exc.retry_after_s)
    if exc.status == 404:
        return ModelNotFound(f"the upstream no longer knows this model{_detail(exc)}")
    if exc.status in {400, 413, 422}:
        return InvalidRequest(
            f"the upstream refuses this request{_detail(exc)}", param=_OURS.get(exc.param or "", exc.param)
        )
    if exc.status in {401, 403}:
        return EngineFailed("the upstream refuses our key")
    if 300 <= exc.status < 400:
        return EngineFailed("the upstream redirects, which we do not follow: the key would go with it")
    return EngineFailed(f"the upstream failed on this request{_detail(exc)}")


def _detail(exc: Refused) -> str:
    return f": {exc.message}" if exc.message else ""


def _retry_after(value: str) -> float:
    """Seconds or a date; always bounded."""
    seconds = 1.0
    with contextlib.suppress(ValueError, TypeError):
        if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
            seconds = float(value)
        elif value:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
