"""What went wrong with a model: what is told of it, what is kept of it, and when it is tried again."""

from __future__ import annotations

import re
import traceback

from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidSetting, LoadFailed, ModelNotFound

FIRST_RETRY_S = 5.0
LAST_RETRY_S = 300.0

_TOLD = (LoadFailed, EngineFailed, ModelNotFound, InvalidSetting)
_PATH = re.compile(r"(?<![\w:/.~])(?:~|\.{1,2})?/[^\s'\",;()]+")


def retry_after_s(failures: int) -> float:
    """Twice as long with each failure in a row."""
    return float(min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** (min(failures, 16) - 1)))


def reason(error: BaseException) -> str:
    """For clients: without paths, and of what nobody foresaw nothing but that it happened."""
    if not isinstance(error, _TOLD):
        return error.message if type(error) is DrivetrainError else "it could not be opened; the server's log says why"
    return _PATH.sub("…", error.message)


def let_go(error: BaseException) -> None:
    """Of all that the frames hold that it went through, weights among it. Its traceback can still be printed."""
    found, met = [error], set[int]()
    while found:
        one = found.pop()
        if id(one) not in met:
            met.add(id(one))
            traceback.clear_frames(one.__traceback__)
            found += [other for other in (one.__cause__, one.__context__) if other is not None]
            found += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
