"""The question for ids, each on a connection of its own."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.llamacpp.child.host import SPLITS
from drivetrain.engines.llamacpp.tokenizer import ServerSplit

BODY = json.dumps({"tokens": [1, 2]}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Server:
    """Answers one question a connection, and waits until it is closed from the other side."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self.connections = self.closed = 0
        self.asked = b""
        self._answer = answer
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._sock.accept()
            with connection:
                if not connection.recv(1, socket.MSG_PEEK):
                    return
                self.connections += 1
                self.asked = connection.recv(2**16)
                connection.sendall(self._answer)
                if self._answer is not ANSWER:
                    continue
                connection.settimeout(10)
                self.closed += connection.recv(1) == b""

    def stop(self) -> None:
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(10)
        self._sock.close()


def test_no_connection_is_left_open() -> None:
    """The server looks at each that is open a hundred times a second, in time that its model needs."""
    server = Server()
    split = ServerSplit("127.0.0.1", server.port, "key")
    for _ in range(4):
        assert split("text", specials=True) == [1, 2]
    assert server.connections == 4
    assert b"\r\nconnection: close\r\n" in server.asked.lower()
    server.stop()
    assert server.closed == 4


def test_an_answer_that_breaks_off_is_an_error_once() -> None:
    server = Server(ANSWER[:-3])
    split = ServerSplit("127.0.0.1", server.port, "key")
    with pytest.raises(EngineFailed):
        split("text", specials=True)
    assert server.connections == 1
    server.stop()


def test_many_at_once_share_a_few_connections() -> None:
    """Of a server that answers nobody until all have come that can."""
    come, closing = threading.Semaphore(0), threading.Event()
    opened: list[socket.socket] = []

    def answer(connection: socket.socket) -> None:
        connection.recv(2**16)
        come.release()
        closing.wait(10)
        connection.sendall(ANSWER)

    def accept(listening: socket.socket, threads: ThreadPoolExecutor) -> None:
        while True:
            connection, _ = listening.accept()
            if closing.is_set() and not connection.recv(1, socket.MSG_PEEK):
                connection.close()
                return
            opened.append(connection)
            threads.submit(answer, connection)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(64) as threads:
        port = listening.getsockname()[1]
        threads.submit(accept, listening, threads)
        split = ServerSplit("127.0.0.1", port, "key")
        asked = [threads.submit(split, "text", specials=True) for _ in range(32)]
        try:
            for _ in range(SPLITS):
                assert come.acquire(timeout=10)
            assert not come.acquire(timeout=0.2)
            assert len(opened) == SPLITS
            closing.set()
            assert [one.result(10) for one in asked] == [[1, 2]] * 32
        finally:
            closing.set()
            for one in asked:
                one.cancel()
            del split, asked
            socket.create_connection(("127.0.0.1", port)).close()
    for connection in opened:
        connection.close()
