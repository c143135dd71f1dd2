"""Request bodies: received within bounds for each one and a budget for all in memory, parsed, released."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from drivetrain.server.context import Context
from drivetrain.server.counts import GONE_KEY
from drivetrain.server.errors import refusal
from drivetrain.server.http.exchange import Exchange
from drivetrain.server.parse.body import Body, Values, read_object
from drivetrain.server.settings import ServerSettings, UnknownFields

T = TypeVar("T")

BODY_KEY = "drivetrain.body"
"""Where a request's scope keeps the share of its body."""

AT_ONCE_BYTES = 65_536
"""Larger bodies are parsed on a thread, so that the event loop does not wait for them."""

MAX_LOOKED_AT = 2048
"""Items of a list whose own size is counted. Lists of texts are not longer, and ids are part of the list's size."""


class ClientGone(Exception):
    """The connection ended before the whole request had arrived."""


class Intake:
    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._budget = BodyBudget(settings.max_bodies_bytes)

    async def take(self, scope: Scope, receive: Receive, limit: int) -> tuple[Response | None, Receive]:
        """Receive the whole body and pass it on in one piece, or refuse it."""
        headers, settings = Headers(scope=scope), self._settings
        if int(headers.get("content-length", "0")) > limit:
            return _too_large(limit), receive
        chunks, size = [], 0
        share = scope[BODY_KEY] = BodyShare(self._budget)
        try:
            async with asyncio.timeout(settings.receipt_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > limit:
                        return _too_large(limit), receive
                    if not share.grow(len(chunks[-1])):
                        return _no_room(settings.max_bodies_bytes), receive
                    more = message.get("more_body", False)
        except TimeoutError:
            message_text = f"the request did not arrive within {settings.receipt_timeout_s:g} seconds"
            return refusal(408, message_text, kind="timeout_error", code="request_timeout"), receive
        return None, _replay(b"".join(chunks), receive, scope)


async def read_body(exchange: Exchange, context: Context, body: Body, *, may_be_empty: bool = False) -> Values:
    """Raises `InvalidRequest` or `Unsupported`, naming the field."""
    return (await read_request(exchange, context, body, lambda values: None, may_be_empty=may_be_empty))[0]


async def read_request(
    exchange: Exchange, context: Context, body: Body, make: Callable[[Values], T], *, may_be_empty: bool = False
) -> tuple[Values, T]:
    """The same, and what `make` makes of the values, which may be as much work as reading them."""
    lenient = context.settings.unknown_fields == UnknownFields.WARN
    max_values = context.settings.max_body_values

    def parse(data: bytes) -> tuple[Values, T]:
        values = body.judge(read_object(data, max_values), lenient=lenient)
        return values, make(values)

    def parse_large(data: bytes) -> tuple[tuple[Values, T], int]:
        parsed = parse(data)
        return parsed, held_bytes(parsed[0])

    held = 0
    try:
        data = await exchange.take_body()
        if may_be_empty and not data:
            data = b"{}"
        if len(data) <= AT_ONCE_BYTES:
            return parse(data)
        parsed, held = await asyncio.get_running_loop().run_in_executor(context.parser, parse_large, data)
        return parsed
    finally:
        release_body(exchange.scope, held)


class BodyBudget:
    """The bytes of all bodies together, taken as they arrive. What the parsed values hold stays until the end."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class BodyShare:
    """One request's share. A body that is only announced takes nothing: it might never come."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> bool:
        """Take more bytes. False, and nothing is taken, if there is no room."""
        if self._budget.used + size > self._budget.limit:
            return False
        self._budget.used += size
        self._size += size
        return True

    def shrink(self, size: int) -> None:
        """Hold only `size` bytes from now on, if that is less than before."""
        self._budget.used -= max(0, self._size - size)
        self._size = min(self._size, size)

    def release(self) -> None:
        """Idempotent."""
        self.shrink(0)


def release_body(scope: Mapping[str, Any], held: int = 0) -> None:
    """Give back all but `held`, the bytes that the parsed values keep until the request has ended."""
    share: BodyShare | None = scope.get(BODY_KEY)
    if share is not None:
        share.shrink(held)


def held_bytes(value: Any) -> int:
    """Roughly the memory of a body's values: their texts and their lists."""
    if isinstance(value, str):
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sum(map(held_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(held_bytes, value[:MAX_LOOKED_AT]))
    if is_dataclass(value):
        return sum(held_bytes(getattr(value, field.name)) for field in fields(value))
    return 0


def _replay(body: bytes, receive: Receive, scope: Scope) -> Receive:
    """The body in one piece, and then whatever else comes. Marks the scope when the client has left."""
    is_given = False

    async def replayed() -> Message:
        nonlocal body, is_given
        if is_given:
            message = await receive()
            if message["type"] == "http.disconnect":
                scope[GONE_KEY] = True
            return message
        is_given, whole, body = True, body, b""  # do not keep it for as long as the answer takes
        return {"type": "http.request", "body": whole, "more_body": False}

    return replayed


def _too_large(limit: int) -> Response:
    message = f"the body is larger than {limit} bytes"
    return refusal(413, message, kind="invalid_request_error", code="body_too_large")


def _no_room(limit: int) -> Response:
    message = f"other request bodies fill the {limit} bytes available; try again"
    return refusal(503, message, kind="unavailable_error", code="overloaded", headers={"retry-after": "1"})
