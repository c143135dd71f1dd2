"""Requests to a server, each one kept so that a report can show it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from drivetrain.tools.conform.answers import Api, ParsedAnswer, read_stream, read_whole
from drivetrain.tools.conform.client import Client, authorized, encoded
from drivetrain.tools.conform.exchange import RecordedExchange
from drivetrain.tools.conform.reading import has_room, honoured

PROMPT = "Tell me a story about a small boat and the sea."
MAX_TOKENS = 8

LEFT_OUT: Final[Any] = object()
"""The value of a field that is not sent."""

_PLAIN = frozenset({"model", "messages", "prompt", "max_tokens", "temperature", "stream", "ignore_eos"})
"""Fields that all our requests have. A refusal of one of them does not mean that a case is not offered."""


class Requester:
    """Every method that sends a request raises `Broken`."""

    def __init__(self, client: Client, model: str) -> None:
        self.client = client
        self.model = model
        self.exchanges: list[RecordedExchange] = []

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> RecordedExchange:
        """`path` starts at the root of the server. `key` is the client's own by default."""
        exchange = self.prepared(method, path, body, headers=headers, key=key)
        await self.client.send(exchange, timeout_s)
        return exchange

    def prepared(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, key: str | None = None
    ) -> RecordedExchange:
        """The request, kept but not sent yet."""
        sent = authorized(self.client.key if key is None else key, headers or {})
        exchange = RecordedExchange(method=method, path=path, headers=sent, body=encoded(body))
        self.exchanges.append(exchange)
        return exchange

    async def get(self, path: str) -> RecordedExchange:
        """Below `/v1`."""
        return await self.ask("GET", self.base + path)

    async def post(self, path: str, body: Any) -> RecordedExchange:
        """Below `/v1`."""
        return await self.ask("POST", self.base + path, body)

    @property
    def base(self) -> str:
        return self.client.address.path

    @property
    def card(self) -> str:
        """The path of the model's card. The name is quoted, since a server may choose any."""
        return f"/models/{quote(self.model, errors='replace')}"

    @property
    def root(self) -> str:
        return self.client.address.root

    # Text

    def body(self, api: Api, **fields: Any) -> dict[str, Any]:
        """A short greedy request; these fields override its own."""
        body = {"model": self.model, **api.prompt_fields(PROMPT), "max_tokens": MAX_TOKENS, "temperature": 0, **fields}
        return {name: value for name, value in body.items() if value is not LEFT_OUT}

    async def generate(self, api: Api, /, **fields: Any) -> ParsedAnswer:
        """Raises `NotOffered` if a field is refused by name, `NotRun` if the context is too small, and `Failed` for
        anything else that is not an answer."""
        exchange = await self.post(api.path, self.body(api, **fields))
        has_room(exchange)
        honoured(exchange, _own_fields(fields))
        return read_whole(api, exchange)

    async def stream(self, api: Api, /, **fields: Any) -> ParsedAnswer:
        exchange = await self.post(api.path, self.body(api, **fields, stream=True))
        has_room(exchange)
        honoured(exchange, _own_fields(fields))
        return read_stream(api, exchange)


def _own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _PLAIN and value is not LEFT_OUT}
