"""Accepting when the process, or the machine, can open no more files at all; and a limit too low to serve."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import subprocess
import sys

import pytest

from drivetrain.core.errors import InvalidSetting
from drivetrain.server.http import file_limit
from drivetrain.server.run import HttpServer, bind
from drivetrain.server.settings import ServerSettings


class Exhausted(socket.socket):
    """Accepts nothing the first `times`."""

    times = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.asked <= self.times:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def exhausted(times: int) -> Exhausted:
    sock = Exhausted(fileno=bind(ServerSettings(port=0)).detach())
    sock.setblocking(False)
    sock.times = times
    return sock


async def app(scope: object, receive: object, send: object) -> None:
    raise NotImplementedError


@pytest.mark.parametrize("times", [1, 3])
async def test_it_waits_between_two_attempts_and_says_so_once(times: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with exhausted(times) as sock:
        http = HttpServer(app, ServerSettings(port=0))
        serving = asyncio.create_task(http.serve(sockets=[sock]))
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        while not sock.asked:
            await asyncio.sleep(0)
        for _ in range(100):  # turns of the loop in which the connection waits
            await asyncio.sleep(0)
        assert sock.asked < 100
        while not http.server_state.connections:
            await asyncio.sleep(0.01)
        assert sock.asked == times + 2  # and the last finds that no more connections wait
        assert [record.getMessage() for record in caplog.records] == [
            "cannot accept connections: Too many open files; 0 connections are open, new ones are refused with 503"
        ]
        http.should_exit = True
        await serving
        assert await reader.read() == b""
        writer.close()


def test_a_limit_too_low_to_serve_is_said_at_the_start() -> None:
    command = [sys.executable, "-m", "drivetrain", "serve", "fake", "--port", "0"]
    limited = ["bash", "-c", 'ulimit -n 16; exec "$0" "$@"', *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "this process may open only 16 files, too few to serve: it needs at least" in done.stderr
    assert "ulimit -n" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_said_to_be_needed_is_enough() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        highest, used = max(map(int, os.listdir("/dev/fd"))), 0
        while used <= highest:  # no number below it is free, as when a process starts
            used = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, used)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1 + file_limit.RESERVE, hard))
        with pytest.raises(InvalidSetting, match=f"it needs at least {used + 1 + file_limit.RESERVE + 1};"):
            file_limit.room()
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1 + file_limit.RESERVE + 1, hard))
        assert file_limit.room() == 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
        with pytest.raises(InvalidSetting):
            file_limit.room()
