"""HTTP/1.1 as a client writes and reads it: bytes in, bytes out, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from drivetrain.http.address import Address

MAX_HEAD_BYTES = 2**16
"""For all headers together, and for the line with a chunk's size."""

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_BODILESS = frozenset({204, 304})
_LINE_END = -1
"""In place of what is left of a chunk: the line end after it comes next."""


class Broken(Exception):
    """A server was reached, but gave no whole answer. The message is ours and names no address."""


class CutOff(Broken, EOFError):
    """The connection was closed before the end of the answer."""


class NotHttp(Broken):
    """The server did not send valid HTTP."""


class TooLong(Broken):
    """The answer is longer than the caller accepts."""


def spelled(address: Address, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A whole request. `path` is from the root of the host; `headers`, in lower case, override the ones set here."""
    fields = {"host": address.authority, "connection": "close", "content-length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class AnswerParser:
    """Parses an answer as it arrives.

    `status` is 0 until the head is whole; names in `headers` are lower case. `over` becomes true with the last byte of
    the body, or by `end`. Interim answers, with a status below 200, are skipped.
    """

    def __init__(self, method: str = "GET") -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.over = False
        self._bodiless = method == "HEAD"
        self._chunked = False
        self._left: int | None = None  # of the body, or of one chunk; None: everything until the connection closes
        self._half = b""  # an incomplete head or line

    def head(self, data: bytes) -> bytes | None:
        """The part of the body that came with the head, or None until the head is whole. Raises `NotHttp`."""
        data = self._half + data
        while (found := _head_end(data)) is not None:
            status, headers = _parsed_head(data[: found[0]])
            data = data[found[1] :]
            if status >= 200:
                self._half = b""
                self._begin(status, headers)
                return data
        if len(data) > MAX_HEAD_BYTES or (b"\n" in data and _STATUS.match(data) is None):
            raise NotHttp("the answer is not HTTP")
        self._half = data
        return None

    def feed(self, data: bytes) -> Iterable[bytes]:
        """The parts of the body in `data`, without waiting for a chunk to be whole.

        Valid parts come before `NotHttp` is raised for what follows them, so take them all before the next call.
        """
        if self._left == 0 and self._chunked and not self._half:  # the usual case: data is exactly one chunk
            line_end = data.find(b"\r\n")
            if 0 < line_end < 8:
                size = _number(data[:line_end].partition(b";")[0], 16)
                if size and line_end + size + 4 == len(data):
                    return (data[line_end + 2 : -2],)
        if not self.status:
            rest = self.head(data)
            if rest is None:
                return ()
            data = rest
        if self.over or not data:
            return ()
        if self._chunked:
            return self._chunks(data)
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.over = self._left == 0
        return (data,)

    def end(self) -> None:
        """The connection was closed. Raises `CutOff` unless this is how the answer ends."""
        if not self.status:
            raise CutOff("the connection was closed before any answer: what came is not HTTP")
        if not self.over and (self._chunked or self._left is not None):
            raise CutOff("the connection was closed in the middle of the answer")
        self.over = True

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        length = headers.get("content-length")
        if self._bodiless or status in _BODILESS:
            self.over = True
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._chunked, self._left = True, 0
        elif length is not None:
            self._left = _number(length, 10)
            self.over = self._left == 0

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        assert self._left is not None
        if self._half:
            data, self._half = self._half + data, b""
        at = 0
        while at < len(data):
            if self._left > 0:
                part = data[at : at + self._left]
                at += len(part)
                self._left = self._left - len(part) or _LINE_END
                yield part
                continue
            line_end = data.find(b"\n", at)
            if line_end < 0:
                self._half = data[at:]
                if len(self._half) > MAX_HEAD_BYTES:
                    raise NotHttp("the answer is not HTTP")
                return
            line, at = data[at:line_end], line_end + 1
            if self._left == _LINE_END:
                self._left = 0
                continue
            self._left = _number(line.partition(b";")[0], 16) or None
            if self._left is None:
                self.over = True
                return


def _head_end(data: bytes) -> tuple[int, int] | None:
    """Where the head ends and where the body begins. A bare line feed ends a line too."""
    ends = [(at + 1, at + len(mark)) for mark in (b"\n\r\n", b"\n\n") if (at := data.find(mark)) >= 0]
    return min(ends, default=None)


def _parsed_head(data: bytes) -> tuple[int, dict[str, str]]:
    status = _STATUS.match(data)
    if status is None or len(data) > MAX_HEAD_BYTES:
        raise NotHttp("the answer is not HTTP")
    headers: dict[str, str] = {}
    for line in data.decode("latin-1").split("\n")[1:]:
        name, _, value = line.partition(":")
        if name:
            headers[name.strip().lower()] = value.strip()
    return int(status[1]), headers


def _number(text: str | bytes, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError as exc:
        raise NotHttp("the answer is not HTTP") from exc
    if not 0 <= number < 2**63:
        raise NotHttp("the answer is not HTTP")
    return number
