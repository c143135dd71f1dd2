"""What went wrong with a model: what clients are told, what is kept, and when it is tried again."""

from __future__ import annotations

import re
import traceback

from drivetrain.core.errors import DrivetrainError, EngineFailed, InvalidSetting, LoadFailed, ModelNotFound

FIRST_RETRY_S = 5.0
LAST_RETRY_S = 300.0

_SHOWN = (LoadFailed, EngineFailed, ModelNotFound, InvalidSetting)
_PATH = re.compile(r"(?<![\w:/.~])(?:~|\.{1,2})?/[^\s'\",;()]+")


def retry_after_s(failures: int) -> float:
    """Doubled with each failure in a row."""
    return float(min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** (min(failures, 16) - 1)))


def reason(error: BaseException) -> str:
    """For clients: without paths, and without details of an unforeseen error."""
    if not isinstance(error, _SHOWN):
        return error.message if type(error) is DrivetrainError else "it could not be opened; the server's log says why"
    return _PATH.sub("…", error.message)


def let_go(error: BaseException) -> None:
    """Free what its frames hold, such as weights. The traceback can still be printed."""
    found, visited = [error], set[int]()
    while found:
        one = found.pop()
        if id(one) not in visited:
            visited.add(id(one))
            traceback.clear_frames(one.__traceback__)
            found += [other for other in (one.__cause__, one.__context__) if other is not None]
            found += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
