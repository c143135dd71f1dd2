"""The server for an agent: one that runs and has the model, or one that is started and ends with the agent."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from drivetrain.cli.doctor.server import access_key, reader
from drivetrain.cli.launch.clients import NO_KEY, Endpoint
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.event_loop import run_cancellable
from drivetrain.core.errors import DrivetrainError, InvalidSetting, ModelNotFound
from drivetrain.http.address import Address, url_of_listener
from drivetrain.http.parser import Broken
from drivetrain.tools.doctor.page import Pages

STOPS_AFTER = 40
"""`max_repetitions` of a server that is started here: an agent has nobody who would stop a loop."""

HOST = "127.0.0.1"
POLL_S = 0.2
STOP_S = 15.0


@contextmanager
def served(args: argparse.Namespace, own_url: str) -> Iterator[tuple[Endpoint, dict[str, Any]]]:
    """Where the model is, and what its card says of it.

    A server at `--url`, or else at the usual place, counts if it has the model.
    """
    args.url, given = args.url or own_url, args.url is not None
    try:
        pages = _pages(args)
    except InvalidSetting:
        if given or args.model is None:
            raise
        pages = None
    if pages is not None and (given or args.model is None or args.model in pages.cards):
        yield _found(args, pages)
        return
    with _started(args) as url:
        args.url, args.model = url, None
        yield _found(args, _pages(args))


def _pages(args: argparse.Namespace) -> Pages:
    return run_cancellable(reader(args).read)


def _found(args: argparse.Namespace, pages: Pages) -> tuple[Endpoint, dict[str, Any]]:
    """Raises `ModelNotFound` if the server does not have the model, or several and none is named."""
    names = list(pages.cards)
    if not names:
        raise DrivetrainError(f"{args.url} lists no models, or only with a key: give --api-key-file")
    name = args.model if args.model is not None or len(names) > 1 else names[0]
    if name not in names:
        which = f"has no model {name!r}" if name is not None else "has several models: name one"
        raise ModelNotFound(f"{args.url} {which}; there are {', '.join(names)}")
    card = pages.cards[name].table
    told = card.get("capabilities")
    capabilities = told if isinstance(told, dict) else {}
    length = capabilities.get("context_length")
    context = length if isinstance(length, int) else 0
    root = str(Address.parse(args.url, param="url")).removesuffix("/v1")
    return Endpoint(root, name, access_key(args).secret or NO_KEY, context), capabilities


@contextmanager
def _started(args: argparse.Namespace) -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "drivetrain", "serve", args.model, "--host", HOST, "--port", str(port)]
    if args.context_length is not None:
        command += ["--context-length", str(args.context_length)]
    if args.engine is not None:
        command += ["--engine", args.engine]
    command += ["--max-repetitions", str(STOPS_AFTER)]
    output.note(f"starting {args.model}")
    process = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is the agent's
    )
    assert process.stdout is not None
    said = _Said(process.stdout)
    try:
        url = url_of_listener(HOST, port)
        _wait_until_ready(process, port, said)
        said.is_shown = False
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()


class _Said:
    """What the server says: shown until it is ready, and then kept from the agent's screen."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.is_shown = True
        self._stream = stream
        self._thread = threading.Thread(target=self._pass_on, name="drivetrain-launch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Once the server has ended."""
        self._thread.join()
        self._stream.close()

    def _pass_on(self) -> None:
        while piece := self._stream.read1(4096):  # type: ignore[attr-defined] # a BufferedReader
            if self.is_shown:
                sys.stderr.buffer.write(piece)
                sys.stderr.flush()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, said: _Said) -> None:
    """It listens from the beginning, and says more than whether it accepts requests; only that counts."""
    from drivetrain.http.blocking import ask

    address = Address.parse(url_of_listener(HOST, port), param="url")
    while process.poll() is None:
        try:
            if ask(address, "GET", "/ready", {}, timeout_s=5, limit=2**16).status == 200:
                return
        except (OSError, Broken):
            pass
        time.sleep(POLL_S)
    raise DrivetrainError(f"the server ended with the exit code {process.returncode}; what it said stands above")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def check(title: str, needs: int, at: Endpoint, capabilities: dict[str, Any], *, forced: bool) -> None:
    """Raises `DrivetrainError` for a model with which the agent would fail at its first turn."""
    for problem in _problems(title, needs, at, capabilities):
        if not forced:
            raise DrivetrainError(f"{problem}; --force runs it all the same")
        output.note(f"note: {problem}")


def _problems(title: str, needs: int, at: Endpoint, capabilities: dict[str, Any]) -> Sequence[str]:
    found = []
    if not capabilities.get("tools"):
        found.append(f"{at.model} cannot be offered tools, without which {title} does nothing")
    if at.context_length < needs:
        what = f"{at.model} has a context of {at.context_length:,} tokens; a first turn of {title} needs {needs:,}"
        found.append(f"{what}: give --context-length {needs}, or take a model with a larger one")
    return found
