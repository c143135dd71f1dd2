"""The client for a thread that may block: one request and its whole answer, by a deadline."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from drivetrain.http.address import Address
from drivetrain.http.client import broken_transfer
from drivetrain.http.parser import AnswerParser, TooLong, spelled

_READ_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """Names in `headers` are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    address: Address,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    timeout_s: float,
    limit: int,
) -> WholeAnswer:
    """`path` is from the root of the host; `timeout_s` applies to the connection, and again to everything after it.

    Raises `OSError` if there is no connection, `Broken` if the answer is not valid or not whole, `TimeoutError` if it
    does not come in time.
    """
    with _connected(address, timeout_s) as connection:
        request = spelled(address, method, path, headers, body)
        return exchange(connection, request, method, timeout_s=timeout_s, limit=limit)


def exchange(
    connection: socket.socket,
    request: bytes,
    method: str,
    *,
    timeout_s: float,
    limit: int,
    look_s: float | None = None,
    look: Callable[[], None] = lambda: None,
) -> WholeAnswer:
    """Over an open connection. Calls `look` every `look_s` seconds; an exception from it ends the wait."""
    deadline, parser, body = time.monotonic() + timeout_s, AnswerParser(method), bytearray()
    with broken_transfer():
        connection.settimeout(timeout_s)
        connection.sendall(request)
        while not parser.over:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            connection.settimeout(left_s if look_s is None else min(look_s, left_s))
            try:
                data = connection.recv(_READ_BYTES)
            except TimeoutError:
                look()
                continue
            if not data:
                parser.end()
            for part in parser.feed(data):
                body += part
            if len(body) > limit:
                raise TooLong("an answer is far too long")
    return WholeAnswer(parser.status, parser.headers, bytes(body))


@contextlib.contextmanager
def _connected(address: Address, timeout_s: float) -> Iterator[socket.socket]:
    try:
        connection = socket.create_connection((address.host, address.port), timeout_s)
    except UnicodeError as exc:
        raise OSError(f"{address.host!r} is no name of a host") from exc
    with connection:
        if address.tls is None:
            yield connection
            return
        with address.tls.wrap_socket(connection, server_hostname=address.host) as secured:
            yield secured
