"""A server can be reached by spare sockets when the process can open no more files, as often as one is closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator

import pytest

from drivetrain.core.errors import DrivetrainError, NotReady, bug
from drivetrain.engines.llamacpp import errors as llamacpp
from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.tokenizer import ServerSplit
from drivetrain.engines.remote import errors as remote
from drivetrain.http.spare import SpareSockets

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"tokens":[1]}'


@contextlib.contextmanager
def files_left(num: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(num + 1)]
    for file in free:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    await writer.drain()
    with contextlib.suppress(ConnectionError):
        await reader.read()  # until the client has left: the one file serves one connection at a time
    writer.close()


@pytest.mark.parametrize("what", ["ask", "split"])
async def test_a_child_is_asked_without_a_file_left(what: str) -> None:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with contextlib.closing(SpareSockets(1)) as sockets:
            split = ServerSplit("127.0.0.1", port, "key", sockets)
            connection = ChildConnection("127.0.0.1", port, "key", sockets)
            await asyncio.to_thread(split, "x", specials=False)  # so that there is a thread
            with files_left(1):  # for the server's side
                for _ in range(5):
                    if what == "ask":
                        assert await connection.ask("GET", "/x") == {"tokens": [1]}
                    else:
                        assert await asyncio.to_thread(split, "x", specials=False) == [1]
                    while len(asyncio.all_tasks()) > 1:  # until the server's side is closed too
                        await asyncio.sleep(0.001)
            with files_left(0), pytest.raises(OSError, match="Too many open files"):
                await ChildConnection("127.0.0.1", port, "key").ask("GET", "/x")


def test_taken_ones_are_made_again_as_soon_as_there_is_a_file() -> None:
    with contextlib.closing(SpareSockets(2)) as sockets:
        with files_left(0):
            taken = [sockets.take(), sockets.take()]
            with pytest.raises(OSError, match="Too many open files"):
                sockets.take()
            sockets.restock()  # without a file
            for sock in taken:
                sock.close()
            sockets.restock()
            taken = [sockets.take(), sockets.take()]
        for sock in taken:
            sock.close()


def test_nothing_is_made_after_it_is_closed() -> None:
    sockets = SpareSockets(1)
    with contextlib.closing(sockets.take()):
        sockets.close()
    with files_left(0):
        sockets.restock()
        with pytest.raises(OSError, match="Too many open files"):
            sockets.take()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("translate", [bug, llamacpp.while_running, remote.while_running])
def test_a_request_for_which_no_file_can_be_opened_may_come_again(
    number: int, translate: Callable[[BaseException], DrivetrainError]
) -> None:
    error = translate(OSError(number, os.strerror(number)))
    assert type(error) is NotReady
    assert "ulimit -n" in error.message
    assert type(translate(OSError(errno.EPIPE, "Broken pipe"))) is not NotReady
