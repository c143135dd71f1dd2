"""Where every error ends: one line on stderr and an exit code."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.interrupts import Interrupts, Terminated
from drivetrain.core.errors import DrivetrainError, InvalidRequest, InvalidSetting

FAILED = 1
USAGE_ERROR = 2
OUR_BUG = 70
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143


def guarded(command: Callable[[], int], *, debug: bool) -> int:
    """What `command` returns, or the exit code of its failure, which is reported on stderr."""
    output.tolerate_encodings()
    try:
        with Interrupts():
            return _complete(command)
    except BrokenPipeError:  # the reader of our output has gone
        output.silence_stdout()
        return PIPE_CLOSED
    except Terminated:
        return _fail("terminated", TERMINATED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except DrivetrainError as exc:
        _show_traceback(debug)
        asked_wrongly = isinstance(exc, (InvalidSetting, InvalidRequest))
        return _fail(exc.message, USAGE_ERROR if asked_wrongly else FAILED)
    except Exception as exc:  # noqa: BLE001 - the boundary: nothing passes it as a traceback unless asked for
        _show_traceback(debug)
        hint = "" if debug else "; run it again with --debug for the traceback"
        return _fail(f"{type(exc).__name__}: {exc} (this is a bug{hint})", OUR_BUG)


def _complete(command: Callable[[], int]) -> int:
    try:
        code = command()
    except SystemExit as exc:  # how argparse leaves after --help and --version
        code = exc.code if isinstance(exc.code, int) else 0
    output.flush()
    return code


def _fail(message: str, code: int) -> int:
    try:
        output.flush()
    except (DrivetrainError, BrokenPipeError):
        output.silence_stdout()
    output.note(f"drivetrain: {output.one_line(message)}")
    return code


def _show_traceback(debug: bool) -> None:
    if debug:
        output.note(traceback.format_exc().rstrip())
