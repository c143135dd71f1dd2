"""The question for ids, on connections that are kept and that the server may have closed meanwhile."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from drivetrain.core.errors import EngineFailed
from drivetrain.engines.llamacpp.host import SPLITS
from drivetrain.engines.llamacpp.tokenizer import ServerSplit

BODY = json.dumps({"tokens": [1, 2]}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Server:
    """Answers so many questions a connection, then closes it."""

    def __init__(self, a_connection: int, answer: bytes = ANSWER) -> None:
        self.connections = 0
        self._each, self._answer = a_connection, answer
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
                for _ in range(self._each):
                    if not connection.recv(2**16):
                        break
                    connection.sendall(self._answer)

    def stop(self) -> None:
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(10)
        self._sock.close()


@pytest.fixture(params=[1, 2, 100])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(request.param)
    yield made
    made.stop()


def test_a_closed_connection_is_replaced(server: Server, request: pytest.FixtureRequest) -> None:
    split = ServerSplit("127.0.0.1", server.port, "key")
    for _ in range(4):
        assert split("text", specials=True) == [1, 2]
    assert server.connections == {1: 4, 2: 2, 100: 1}[request.node.callspec.params["server"]]
    del split


def test_an_answer_that_breaks_off_is_an_error_once() -> None:
    server = Server(1, ANSWER[:-3])
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
        while connection.recv(2**16):
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
            closing.set()
            assert [one.result(10) for one in asked] == [[1, 2]] * 32
            assert len(opened) == SPLITS
        finally:
            closing.set()
            for one in asked:
                one.cancel()
            del split, asked
            socket.create_connection(("127.0.0.1", port)).close()
    for connection in opened:
        connection.close()
