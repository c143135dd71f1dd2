"""Spare sockets where the process can open no more files: `without_files.py WHAT`, in a process of its own.

In one with other tests, whatever else it does would take the files that are counted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Iterator

import pytest

from drivetrain.engines.llamacpp.child.connection import ChildConnection
from drivetrain.engines.llamacpp.tokenizer import ServerSplit
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


async def a_child_is_asked(what: str) -> None:
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


def taken_ones_are_made_again() -> None:
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


def nothing_is_made_after_it_is_closed() -> None:
    sockets = SpareSockets(1)
    with contextlib.closing(sockets.take()):
        sockets.close()
    with files_left(0):
        sockets.restock()
        with pytest.raises(OSError, match="Too many open files"):
            sockets.take()


def main(what: str) -> None:
    if what in {"ask", "split"}:
        asyncio.run(a_child_is_asked(what))
    elif what == "again":
        taken_ones_are_made_again()
    else:
        nothing_is_made_after_it_is_closed()
    print("all is well")


if __name__ == "__main__":
    main(sys.argv[1])
