"""Checks of a request's line and headers, beyond what h11 checks.

A proxy in front must see the same requests in a stream of bytes as this server does, or a request can hide in the body
of another (request smuggling). So whatever can be read in two ways is refused. An incomplete head is checked too, so
that what can no longer become HTTP is refused at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]{1,32} [\x21-\x7e]+ HTTP/([0-9]\.[0-9])")
_BEGINNING = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]{0,32}(?: [\x21-\x7e]*(?: [HTP/0-9.]{0,8})?)?\r?")
_VERSIONS = (b"1.0", b"1.1")
_END = re.compile(rb"\n\r?\n")
_BARE_NEWLINE = re.compile(rb"(?<!\r)\n")
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:([^\r\n]*)", re.IGNORECASE)
_ENCODING = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fault:
    status: int
    message: str


NOT_HTTP = Fault(400, "this is not a valid HTTP request")


def fault_in(received: bytes) -> Fault | None:
    """`received` begins with a request line and may end anywhere."""
    newline = received.find(b"\n")
    if newline < 0:
        return None if _BEGINNING.fullmatch(received) else NOT_HTTP
    match = _LINE.fullmatch(received[:newline].removesuffix(b"\r"))
    if match is None:
        return NOT_HTTP
    if match[1] not in _VERSIONS:
        return Fault(505, "this server only speaks HTTP/1.1 and HTTP/1.0")
    end = _END.search(received)
    return _ambiguity(received[: end.end()], match[1]) if end is not None else None


def _ambiguity(head: bytes, version: bytes) -> Fault | None:
    if _BARE_NEWLINE.search(head):
        return Fault(400, "each line of a request's head must end in CR LF")
    if _FOLDED.search(head):
        return Fault(400, "a header must not continue on a second line")
    lengths, encoded = _LENGTH.findall(head), _ENCODING.search(head) is not None
    if lengths and encoded:
        return Fault(400, "a request must not have both Content-Length and Transfer-Encoding")
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        return Fault(400, "a request must not have more than one Content-Length")
    if encoded and version == b"1.0":
        return Fault(400, "Transfer-Encoding needs HTTP/1.1")
    return None
