"""Any request, including what a good client would not send: raw bytes, false lengths, leaving in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.http.address import Address
from drivetrain.http.client import HttpConnection, connected
from drivetrain.http.parser import Broken as Broken  # no complete answer: it broke off, is not HTTP, or took too long
from drivetrain.http.parser import CutOff, spelled
from drivetrain.tools.conform.exchange import RecordedExchange

CONNECT_TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 64 * 2**20


class Unreachable(Broken):
    """No connection."""


@dataclass(frozen=True, slots=True)
class Client:
    """One connection per request. `timeout_s` limits a whole answer."""

    address: Address
    key: str
    timeout_s: float

    async def send(self, exchange: RecordedExchange, timeout_s: float | None = None) -> None:
        """Send the request and read the whole answer into the exchange. Raises `Broken`."""
        async with self.response(exchange, timeout_s) as parts:
            async for part in parts:
                exchange.reply += part
                if len(exchange.reply) > MAX_REPLY_BYTES:
                    raise Broken("the answer is larger than 64 MiB")
            exchange.whole = True

    @contextlib.asynccontextmanager
    async def response(
        self, exchange: RecordedExchange, timeout_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send the request and read the headers; yields the body as it arrives. Leaving closes the connection."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        began = time.perf_counter()
        try:
            async with asyncio.timeout(limit), self._connected() as connection:
                with contextlib.suppress(CutOff):  # refused while we were still sending; the answer may say why
                    await connection.send(self._spelled(exchange))
                answer = await connection.answer(exchange.method)
                exchange.status, exchange.reply_headers = answer.status, dict(answer.headers)
                async with contextlib.aclosing(answer.parts()) as parts:
                    yield parts
        except TimeoutError:
            raise Broken(f"no complete answer to {exchange.request_line} within {limit:g} s") from None
        except Broken as exc:
            if isinstance(exc, Unreachable):
                raise
            raise Broken(f"{exchange.request_line}: {exc}") from exc
        finally:
            exchange.took_s = time.perf_counter() - began

    @contextlib.asynccontextmanager
    async def unanswered(self, exchange: RecordedExchange) -> AsyncIterator[None]:
        """Send the request and read nothing. Leaving closes the connection."""
        async with self._connected() as connection:
            await connection.send(self._spelled(exchange))
            yield

    def _spelled(self, exchange: RecordedExchange) -> bytes:
        kind = {"content-type": "application/json"} if exchange.body else {}
        headers = {"accept": "*/*", **kind, **exchange.headers}
        return spelled(self.address, exchange.method, exchange.path, headers, exchange.body)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[HttpConnection]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(connected(self.address, timeout_s=CONNECT_TIMEOUT_S))
            except OSError as exc:
                reason = exc.strerror or str(exc) or "it does not answer"
                raise Unreachable(f"{self.address} cannot be reached: {reason}") from exc
            yield connection


def authorized(key: str, headers: Mapping[str, str]) -> dict[str, str]:
    return {**({"authorization": f"Bearer {key}"} if key else {}), **headers}


def encoded(body: Any) -> bytes:
    """Bytes unchanged, None as an empty body, anything else as JSON in ASCII."""
    if isinstance(body, bytes):
        return body
    return b"" if body is None else json.dumps(body).encode()
