"""One request to one upstream, with its key and its timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, Refused, Unreadable
from drivetrain.engines.remote.settings import (
    CONNECT_TIMEOUT_S,
    FIRST_TIMEOUT_S,
    SILENCE_TIMEOUT_S,
    RemoteSettings,
)
from drivetrain.http.address import Address
from drivetrain.http.client import HttpAnswer, connected
from drivetrain.telemetry.w3c import trace_context as checked_context

MAX_BODY_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In seconds. `first_s` is for a head and a first event together: prompts are computed then. `idle_s` is for each
    further one."""

    connect_s: float = CONNECT_TIMEOUT_S.default
    ask_s: float = 30.0
    first_s: float = FIRST_TIMEOUT_S.default
    idle_s: float = SILENCE_TIMEOUT_S.default

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Timeouts:
        """Those that are settings; the others as they are."""
        settings = RemoteSettings.of(options)
        return cls(
            connect_s=settings.connect_timeout_s,
            first_s=settings.first_timeout_s,
            idle_s=settings.silence_timeout_s,
        )


@contextlib.asynccontextmanager
async def asked(
    address: Address,
    method: str,
    path: str,
    key: Key,
    body: Mapping[str, Any] | None = None,
    *,
    timeouts: Timeouts,
    head_s: float,
    trace_context: Mapping[str, str] | None = None,
) -> AsyncIterator[HttpAnswer]:
    """`path` is from the root of the host. Leaving closes the connection.

    Raises `OSError` (`TimeoutError` included) if there is no connection, `Broken` if no valid answer comes.
    """
    headers = {
        "accept": "text/event-stream, application/json",
        **(checked_context(trace_context) or {}),
        **headers_of(key),
    }
    async with connected(address, timeout_s=timeouts.connect_s) as connection:
        try:
            async with asyncio.timeout(head_s):
                answer = await connection.ask(method, path, headers, encoded(body))
        except TimeoutError as exc:
            raise Broken(f"it did not answer within {head_s:g} seconds") from exc
        yield answer


async def ask_json(
    address: Address,
    method: str,
    path: str,
    key: Key,
    body: Mapping[str, Any] | None = None,
    *,
    timeouts: Timeouts,
    trace_context: Mapping[str, str] | None = None,
) -> Any:
    """Raises `Refused` for any status but 200, `Unreadable` for anything but JSON, and what `asked` raises."""
    try:
        async with (
            asyncio.timeout(timeouts.ask_s),
            asked(
                address, method, path, key, body, timeouts=timeouts, head_s=timeouts.ask_s, trace_context=trace_context
            ) as answer,
        ):
            data = await answer.whole(MAX_BODY_BYTES)
    except TimeoutError as exc:
        raise Broken(f"it did not answer within {timeouts.ask_s:g} seconds") from exc
    if answer.status != 200:
        raise Refused.parse(answer.status, answer.headers, data, key)
    return parsed(data)


def headers_of(key: Key) -> dict[str, str]:
    return {"content-type": "application/json", **key.headers}


def encoded(body: Mapping[str, Any] | None) -> bytes:
    return b"" if body is None else json.dumps(body, separators=(",", ":")).encode()


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise Unreadable("its answer is not JSON") from exc
