"""File handles: with few of them each request is served or refused, nobody waits, and running streams go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from bounds.attack import Victim, eventually, victim

STREAMS = 30
MAX_LOG_BYTES = 100_000

CHAT = [{"role": "user", "content": "x"}]
ENDLESS = {"model": "fake", "max_tokens": 600_000, "stream": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {**ENDLESS, "prompt": "x"},
    "/v1/messages": {**ENDLESS, "messages": CHAT},
    "/v1/responses": {"model": "fake", "input": "x", "max_output_tokens": 600_000, "stream": True},
    "/api/chat": {"model": "fake", "messages": CHAT, "options": {"num_predict": 600_000}},
}
SCRIPT = {"repeat": True, "context_length": 10_000_000, "step_delay_s": 0.01, "max_concurrency": 4096}
"""Its streams last until their clients leave."""


def error_of(path: str, answer: Any) -> str:
    """The message, where that API's clients look for it."""
    error = answer["error"]
    if path == "/v1/messages":
        assert (answer["type"], error["type"]) == ("error", "overloaded_error")
    return str(error if path.startswith("/api/") else error["message"])


class Client:
    def __init__(self, server: Victim) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        self.status = 0

    def ask(self, path: str, more: Mapping[str, Any]) -> None:
        self._connection.request("POST", path, json.dumps({**BODIES[path], **more}))

    def hear(self, path: str) -> None:
        self._response = self._connection.getresponse()
        self.status = self._response.status
        if self.status != 200:
            assert (self.status, self._response.getheader("retry-after")) == (503, "1")
            assert "as many connections as it can serve" in error_of(path, json.load(self._response))

    def streams(self) -> bool:
        """Whether more comes."""
        return self.status == 200 and bool(self._response.readline() + self._response.readline())

    def hear_all(self) -> None:
        """A completion, to its end."""
        assert self.status != 200 or self._response.read().endswith(b"data: [DONE]\n\n")

    def close(self) -> None:
        if self.status == 200:
            self._response.close()
        self._connection.close()


@contextlib.contextmanager
def clients(
    server: Victim, path: str, num: int, more: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[list[Client]]:
    """All have asked before the first one hears. All are closed at the end."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(contextlib.closing(Client(server))) for _ in range(num)]
        for one in made:
            one.ask(path, more)
        for one in made:
            one.hear(path)
        yield made


@pytest.mark.parametrize(
    ("files", "path"), [(files, "/v1/completions") for files in (24, 64, 100)] + [(40, path) for path in BODIES]
)
def test_each_of_many_streams_is_served_or_refused(files: int, path: str) -> None:
    with tempfile.TemporaryFile() as log, victim(files=files, errors=log, script=SCRIPT) as server:
        server.works()
        eventually(lambda: server.num_connections() == 0)
        before = sorted(server.open_files())
        with clients(server, path, STREAMS) as crowd:
            served = [one for one in crowd if one.status == 200]
            assert served
            assert len(served) == STREAMS or files < 64
            with clients(server, path, STREAMS):
                assert all(one.streams() for one in served)
            status, data = server.request("GET", "/health")
            assert (status, data) == (200, b'{"status":"ok"}')
        eventually(lambda: server.num_connections() == 0)
        server.works()
        eventually(lambda: sorted(server.open_files()) == before)
        assert log.seek(0, 2) < MAX_LOG_BYTES


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_idle_connections_make_room(sent: bytes) -> None:
    """The streams that run beside them go on."""
    with (
        victim(files=40, script=SCRIPT, server={"receipt_timeout_s": 1000, "keep_alive_s": 1000}) as server,
        clients(server, "/v1/completions", 3) as running,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(200):
            idle = stack.enter_context(server.raw())
            with contextlib.suppress(ConnectionError):
                idle.sendall(sent)
        for _ in range(20):
            eventually(lambda: server.request("GET", "/v1/models")[0] == 200)
            assert all(one.streams() for one in running)


def test_more_connections_than_allowed_are_refused_in_words() -> None:
    with victim(script=SCRIPT, server={"max_connections": 3}) as server:
        with clients(server, "/v1/completions", 3) as running, clients(server, "/v1/messages", 9) as refused:
            assert all(one.streams() for one in running)
            assert {one.status for one in refused} == {503}
        eventually(lambda: server.num_connections() == 0)
        server.works()


def test_who_is_refused_and_stays_is_gone_soon() -> None:
    with (
        victim(script=SCRIPT, server={"max_connections": 1, "receipt_timeout_s": 1000}) as server,
        clients(server, "/v1/completions", 1),
        contextlib.ExitStack() as stack,
    ):
        silent: list[socket.socket] = [stack.enter_context(server.raw()) for _ in range(10)]
        assert [sock.recv(1) for sock in silent] == [b""] * len(silent)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["llamacpp", "native"])
def test_each_of_many_streams_is_served_or_refused_on_an_engine(
    engine: str, smollm2: str, checkpoint: Callable[[str], Path]
) -> None:
    """llama.cpp is asked on a connection for each answer: there is a file for it before the request is admitted."""
    of_engine: dict[str, Any] = {"threads": 1} if engine == "llamacpp" else {"compile": "off"}
    model = smollm2 if engine == "llamacpp" else str(checkpoint("llama"))
    worker = {"engine": engine, "name": "fake", **of_engine}
    with tempfile.TemporaryFile() as log, victim(model, files=40, errors=log, worker=worker) as server:
        server.works()
        eventually(lambda: server.num_connections() == 0)
        before = len(server.open_files())
        for _ in range(2):
            with clients(server, "/v1/completions", STREAMS, {"max_tokens": 8}) as crowd:
                assert any(one.status == 200 for one in crowd)
                for one in crowd:
                    one.hear_all()
            eventually(lambda: server.num_connections() == 0)
        server.works()
        eventually(lambda: len(server.open_files()) == before)
        assert log.seek(0, 2) < MAX_LOG_BYTES
