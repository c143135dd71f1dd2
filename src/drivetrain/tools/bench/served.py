"""`drivetrain serve`, or a command like it, as a child process on a free port, with a key that only we know."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from drivetrain.core.errors import DrivetrainError

STOP_TIMEOUT_S = 60.0
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True)
class ServedTarget:
    url: str
    key: str = field(repr=False)


@contextlib.asynccontextmanager
async def serving(model: str, arguments: Sequence[str], *, command: str = "serve") -> AsyncIterator[ServedTarget]:
    """A server that is ready. Raises `DrivetrainError` with the child's own message if it does not start.

    The child has a session of its own: a Ctrl-C at the terminal reaches only us, and we end the child.
    """
    key = secrets.token_hex(16)
    command_line = [sys.executable, "-P", "-m", "drivetrain", command, model, "--port", "0", "--quiet", *arguments]
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command_line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "DRIVETRAIN_API_KEY": key},
        )
        try:
            url = await _address(process)
            if url is None:
                await process.wait()
                errors.seek(0)
                last = errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()[-1:]
                reason = last[0].removeprefix("drivetrain: ") if last else f"exit code {process.returncode}"
                raise DrivetrainError(f"drivetrain {command} did not start: {reason}")
            yield ServedTarget(f"{url}/v1", key)
        finally:
            await asyncio.shield(_end(process))


async def _address(process: asyncio.subprocess.Process) -> str | None:
    """The address that it prints when it is ready; None if it ended first."""
    assert process.stdout is not None
    async for line in process.stdout:
        if found := _ADDRESS.search(line):
            return found.group().decode()
    return None


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
