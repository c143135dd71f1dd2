"""The server for an agent: one that runs and has the model, or one that is started and ends with the agent."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote

from drivetrain.cli.doctor.server import access_key, reader
from drivetrain.cli.launch.clients import NO_KEY, Client, Endpoint
from drivetrain.cli.launch.processes import end
from drivetrain.cli.terminal import output
from drivetrain.cli.terminal.event_loop import run_cancellable
from drivetrain.core.errors import DrivetrainError, InvalidSetting, ModelNotFound
from drivetrain.http.address import Address, url_of_listener
from drivetrain.http.parser import Broken
from drivetrain.tools.doctor.values import tables

STOPS_AFTER = 40
"""`max_repetitions` of a server that is started here: an agent has nobody who would stop a loop."""

HOST = "127.0.0.1"
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Found:
    """Where a model is, and what its card says of it. `started`: by us, for this agent."""

    at: Endpoint
    capabilities: Mapping[str, Any]
    started: bool


@contextmanager
def served(args: argparse.Namespace, own_url: str) -> Iterator[Found | None]:
    """A server at `--url`, or else at the usual place, counts if it has the model; otherwise one is started.

    None: nothing runs, and nothing is started, for only lines are to be printed.
    """
    url, given = args.url or own_url, args.url is not None
    try:
        found = _found(args, url, started=False)
    except (InvalidSetting, ModelNotFound):
        if given or args.model is None:
            raise
        found = None
    if found is not None:
        if (flag := next((f for f in ("context_length", "engine") if getattr(args, f) is not None), None)) is not None:
            name = f"--{flag.replace('_', '-')}"
            raise InvalidSetting(f"{name} is for a server that is started; {url} runs already", param=flag)
        yield found
    elif args.only_print:
        yield None
    else:
        with _started(args) as started_url:
            args.model = None
            yield _found(args, started_url, started=True)


def _found(args: argparse.Namespace, url: str, *, started: bool) -> Found:
    """Raises `ModelNotFound` if the server does not have the model, or several and none is named."""
    args.url = url
    server = reader(args)
    pages = run_cancellable(server.read)
    names = [str(card["id"]) for card in tables(pages.models.table.get("data")) if "id" in card]
    if not names:
        raise DrivetrainError(f"{url} lists no models, or only with a key: give --api-key-file")
    own = [name for name in names if name in pages.cards] or names
    name = args.model if args.model is not None or len(own) > 1 else own[0]
    if name not in names:
        which = f"has no model {name!r}" if name is not None else "has several models: name one"
        raise ModelNotFound(f"{url} {which}; there are {', '.join(own)}")
    card = run_cancellable(lambda: server.get(f"{server.address.path}/models/{quote(name, safe='')}"))
    told = card.table.get("capabilities")
    capabilities = told if isinstance(told, dict) else {}
    length = capabilities.get("context_length")
    root = str(server.address).removesuffix("/v1")
    at = Endpoint(root, name, access_key(args).secret or NO_KEY, length if isinstance(length, int) else 0)
    return Found(at, capabilities, started)


def serve_words(args: argparse.Namespace, context_length: int | None = None) -> list[str]:
    """What `drivetrain` is told to start one."""
    given = {"--context-length": args.context_length or context_length, "--engine": args.engine}
    flags = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return ["serve", args.model, *flags, "--max-repetitions", str(STOPS_AFTER)]


@contextmanager
def _started(args: argparse.Namespace) -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "drivetrain", *serve_words(args), "--host", HOST, "--port", str(port)]
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
        _wait_until_ready(process, port)
        said.is_shown = False
        yield url_of_listener(HOST, port)
    finally:
        end(process)
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


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
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


def check(client: Client, found: Found, *, forced: bool) -> None:
    """Raises `DrivetrainError` for a model with which the agent would fail at its first turn."""
    for problem in _problems(client, found):
        if not forced:
            raise DrivetrainError(f"{problem}; --force runs it all the same")
        output.note(f"note: {problem}")


def _problems(client: Client, found: Found) -> list[str]:
    problems, at = [], found.at
    if not found.capabilities.get("tools"):
        problems.append(f"{at.model} cannot be offered tools, without which {client.title} does nothing")
    if at.context_length < client.needs:
        has = f"{at.model} has a context of {at.context_length:,} tokens"
        flag = f"--context-length {client.needs}"
        remedy = f"give {flag}" if found.started else f"start its server with {flag}"
        needs = f"a first turn of {client.title} needs {client.needs:,}"
        problems.append(f"{has}; {needs}: {remedy}, or take a model with a larger one")
    return problems
