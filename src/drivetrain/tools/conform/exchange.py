"""One request and its reply, kept as they were on the wire so that a report can show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivetrain.tools.conform.verdict import Failed

SHOWN_REQUEST_CHARS = 1500
SHOWN_REPLY_CHARS = 3000
HIDDEN = "(hidden)"
_SHOWN_HEADERS = ("content-type", "retry-after", "allow", "www-authenticate", "x-request-id")


@dataclass(slots=True, kw_only=True)
class RecordedExchange:
    """The reply's header names are in lower case. `whole` says whether the reply arrived to its end."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    status: int = 0
    reply_headers: dict[str, str] = field(default_factory=dict)
    reply: bytes = b""
    whole: bool = False
    took_s: float = 0.0

    @property
    def request_line(self) -> str:
        """The request, for use in a sentence."""
        return f"{self.method} {self.path}"

    def json(self) -> Any:
        """The reply. Raises `Failed`."""
        try:
            return json.loads(self.reply)
        except (ValueError, RecursionError):
            raise Failed(f"the answer to {self.request_line} (status {self.status}) is not JSON") from None

    @property
    def document(self) -> dict[str, Any]:
        """The reply, or an empty object if it is not a JSON object."""
        try:
            document = self.json()
        except Failed:
            return {}
        return document if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True)
class Shown:
    """An exchange as a report shows it: cut to a readable size and without the key."""

    request: str
    status: int
    reply: str
    took_s: float


def show(exchange: RecordedExchange, key: str) -> Shown:
    headers = {
        name: HIDDEN if name.lower() == "authorization" else value[:200] for name, value in exchange.headers.items()
    }
    lines = [f"{exchange.method} {exchange.path}", *(f"{name}: {value}" for name, value in headers.items())]
    request = "\n".join([*lines, "", _cut(exchange.body, SHOWN_REQUEST_CHARS)]).rstrip()
    shown = [f"{name}: {exchange.reply_headers[name]}" for name in _SHOWN_HEADERS if name in exchange.reply_headers]
    end = "" if exchange.whole or not exchange.status else "\n(the client left here, or the answer broke off)"
    reply = "\n".join([*shown, "", _cut(exchange.reply, SHOWN_REPLY_CHARS)]).strip() + end
    return Shown(hide(request, key), exchange.status, hide(reply, key), round(exchange.took_s, 3))


def hide(text: str, key: str) -> str:
    return text.replace(key, HIDDEN) if key else text


def _cut(data: bytes, limit: int) -> str:
    """The beginning and the end of long data: what is wrong with a stream is often at its end."""
    if len(data) <= limit:
        return data.decode("utf-8", "backslashreplace")
    head, tail = data[: limit * 2 // 3], data[-limit // 3 :]
    left_out = len(data) - len(head) - len(tail)
    return f"{_text(head)}\n… ({left_out:,} bytes left out) …\n{_text(tail)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "ignore")
