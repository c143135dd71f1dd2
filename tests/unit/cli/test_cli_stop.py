"""`drivetrain stop`: ends our own server by its port, and never another process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_rigs import run_here, slow_chatterbox, without_settings

from drivetrain.cli.serve import running
from drivetrain.cli.serve.running import ports, process_on, recorded

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_settings(monkeypatch, tmp_path / "home")


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server of its own process, ready, and its port."""
    command = [sys.executable, "-m", "drivetrain", "serve", "fake", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process, port_of(process)
        finally:
            process.kill()


def port_of(process: subprocess.Popen[bytes]) -> int:
    """Once it is ready."""
    assert process.stdout is not None
    line = next(line for line in process.stdout if b"http://" in line)
    return int(line.rpartition(b":")[2].strip(b"/\n "))


def test_a_server_is_ended_by_its_port_or_its_url(capsys: Capture) -> None:
    with serving() as (one, port), serving() as (two, other):
        assert ports() == sorted([port, other])
        assert process_on(port) == one.pid
        outcome = run_here(capsys, "stop", str(port))
        assert (outcome.code, outcome.out) == (0, f"the server on port {port} has ended\n")
        assert one.wait(30) == 0
        assert two.poll() is None
        missing = run_here(capsys, "stop", str(port))
        assert (missing.code, missing.error.endswith(f"there is one on {other}")) == (1, True)
        assert run_here(capsys, "stop", f"http://localhost:{other}", "--now").code == 0
        assert two.wait(30) in {0, 128 + signal.SIGTERM}
    assert ports() == []


def test_the_usual_port_is_that_of_serve(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (process, port):
        monkeypatch.setenv("DRIVETRAIN_PORT", str(port))
        assert run_here(capsys, "stop").code == 0
        assert process.wait(30) == 0


def test_what_a_killed_server_left_is_not_believed(capsys: Capture, tmp_path: Path) -> None:
    with serving() as (process, port):
        process.kill()
        process.wait()
        assert (tmp_path / "home" / "servers" / f"{port}.json").exists()
        assert process_on(port) is None
        outcome = run_here(capsys, "stop", str(port))
    assert (outcome.code, "no server of yours is known" in outcome.error) == (1, True)


def test_a_process_of_another_container_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock of a shared folder, but its process id means another process here."""
    with socket.create_server(("127.0.0.1", 0)) as sock, recorded(sock):
        port = sock.getsockname()[1]
        assert process_on(port) == os.getpid()
        record = tmp_path / "home" / "servers" / f"{port}.json"
        record.write_text(json.dumps({"pid": os.getpid(), "mark": "pid:[1] 2"}))
        assert process_on(port) is None
        record.write_text("{")
        assert process_on(port) is None
        with monkeypatch.context() as marks:
            marks.setattr(running, "_mark", lambda pid: "a mark")
            for pid in (-1, 0, 1, True, 7.0, "7"):
                record.write_text(json.dumps({"pid": pid, "mark": "a mark"}))
                assert process_on(port) is None, pid
            marks.setattr(running, "_mark", lambda pid: "")
            record.write_text(json.dumps({"pid": 7, "mark": ""}))
            assert process_on(port) is None, "the system does not say whose it is"
        other = tmp_path / "other.json"
        record.rename(other)
        other.write_text(json.dumps({"pid": os.getpid(), "mark": running._mark(os.getpid())}))
        record.symlink_to(other)
        assert process_on(port) is None, "a link may be anybody's"
    assert list(record.parent.iterdir()) == []


def test_a_server_runs_without_a_folder_to_record_it_in(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with socket.create_server(("127.0.0.1", 0)) as sock, recorded(sock):
        assert process_on(sock.getsockname()[1]) is None
    assert ports() == []


def test_two_on_one_port_number_are_one_record() -> None:
    """On two addresses of the machine: the first one is known, and the second one's end leaves it so."""
    with socket.create_server(("127.0.0.1", 0)) as sock, recorded(sock):
        port = sock.getsockname()[1]
        with recorded(sock):
            pass
        assert process_on(port) == os.getpid()


@pytest.mark.parametrize(
    ("server", "code", "words"),
    [
        ("http://example.org:8000", 2, "is another machine"),
        ("nonsense", 2, "is not a URL"),
        ("99999", 1, "no server of yours is known on port 99999"),
    ],
)
def test_what_cannot_be_stopped(capsys: Capture, server: str, code: int, words: str) -> None:
    outcome = run_here(capsys, "stop", server)
    assert (outcome.code, words in outcome.error) == (code, True)


def test_now_ends_what_runs(capsys: Capture) -> None:
    with slow_chatterbox("serve", "fake", "--port", "0", "--drain-s", "600") as process:
        port = port_of(process)
        body = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 4000, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert run_here(capsys, "stop", str(port), "--now").code == 0
            assert process.wait(30) == 128 + signal.SIGTERM, "a second signal, for the first one waits for the answer"
