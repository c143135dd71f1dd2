"""Servers that are none of ours: each answers what it is told to, or does something worse."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

Behaviour = Callable[[socket.socket, str], None]
"""Gets the connection and the path that was asked."""


@contextlib.contextmanager
def behaving(behaviour: Behaviour) -> Iterator[str]:
    """Its URL. A connection is closed once the behaviour has returned."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    done = threading.Event()
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(20)
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            behaviour(connection, request.split(b" ")[1].decode())

    def accept() -> None:
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                threads.append(threading.Thread(target=answer, args=(listener.accept()[0],)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        done.set()
        accepting.join()
        listener.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def giving(documents: Mapping[str, bytes], headers: str = "") -> Behaviour:
    """404 for any other path."""

    def behaviour(connection: socket.socket, path: str) -> None:
        body = documents.get(path, b'{"detail": "Not Found"}')
        status = "200 OK" if path in documents else "404 Not Found"
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        connection.sendall(head.encode() + body)

    return behaviour


def silent(connection: socket.socket, path: str) -> None:
    """Until the other side leaves."""
    connection.recv(1)


def endless(head: bytes, more: bytes) -> Behaviour:
    def behaviour(connection: socket.socket, path: str) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(more)

    return behaviour


def trickling(connection: socket.socket, path: str) -> None:
    """A byte now and then, so that no wait for one is long."""
    connection.settimeout(0.1)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    with contextlib.suppress(TimeoutError):
        while True:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    return
