"""A server can be reached by spare sockets when the process can open no more files, as often as one is closed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.core.errors import DrivetrainError, NotReady, bug
from drivetrain.engines.llamacpp import errors as llamacpp
from drivetrain.engines.remote import errors as remote


@pytest.mark.parametrize("what", ["ask", "split", "again", "closed"])
def test_without_a_file_left(what: str) -> None:
    script = Path(__file__).with_name("without_files.py")
    done = subprocess.run([sys.executable, script, what], capture_output=True, text=True, timeout=250)
    assert done.stdout == "all is well\n", done.stderr


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("translate", [bug, llamacpp.while_running, remote.while_running])
def test_a_request_for_which_no_file_can_be_opened_may_come_again(
    number: int, translate: Callable[[BaseException], DrivetrainError]
) -> None:
    error = translate(OSError(number, os.strerror(number)))
    assert type(error) is NotReady
    assert "ulimit -n" in error.message
    assert type(translate(OSError(errno.EPIPE, "Broken pipe"))) is not NotReady
