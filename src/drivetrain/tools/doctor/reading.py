"""Reads the pages of a server, within bounds of time and size whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any
from urllib.parse import quote

from drivetrain.core.errors import InvalidSetting
from drivetrain.core.status import State
from drivetrain.engines.remote.address import Key
from drivetrain.engines.remote.errors import Broken, reason
from drivetrain.engines.remote.wire import Timeouts, asked
from drivetrain.http.address import Address
from drivetrain.http.client import HttpAnswer
from drivetrain.tools.doctor.page import FetchedPage, Pages
from drivetrain.tools.doctor.redact import Redactor
from drivetrain.tools.doctor.series import Series
from drivetrain.tools.doctor.values import tables, text

MAX_PAGE_BYTES = 2**23
MAX_CARDS = 20
AT_ONCE = 8
KEPT_HEADERS = ("date", "server")


class ServerReader:
    """`timeout_s` is for the connection, and again for the answer."""

    def __init__(self, address: Address, key: Key, admin_key: Key, timeout_s: float) -> None:
        self.address = address
        self._key = key
        self._admin_key = admin_key
        self._timeout_s = timeout_s
        self._redactor = Redactor([admin_key, key])
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def read(self) -> Pages:
        """Raises `InvalidSetting` if there is no server."""
        root, base = self.address.root, self.address.path
        health = await self.get(f"{root}/health")
        asked_at = time.time()
        if not health.reached:
            raise InvalidSetting(f"{self.address} cannot be reached: {health.problem}")
        async with asyncio.TaskGroup() as group:
            ready = group.create_task(self.get(f"{root}/ready"))
            status = group.create_task(self.get(f"{root}/status"))
            metrics = group.create_task(self.get(f"{root}/metrics"))
            models = group.create_task(self.get(f"{base}/models"))
            admin = group.create_task(self.get(f"{root}/admin/models", self._admin_key))
            without = group.create_task(self.get(f"{root}/status", Key())) if self._key.secret else None
        cards = [card for card in tables(models.result().table.get("data")) if _tells_more(card)]
        async with asyncio.TaskGroup() as group:
            asked_cards = {
                card["id"]: group.create_task(self.get(f"{base}/models/{quote(card['id'], safe='', errors='replace')}"))
                for card in cards[:MAX_CARDS]
            }
        return Pages(
            address=self.address,
            sent_key=bool(self._key.secret),
            sent_admin_key=self._admin_key != self._key,
            health=health,
            ready=ready.result(),
            status=status.result(),
            metrics=metrics.result(),
            models=models.result(),
            admin=admin.result(),
            open=None if without is None else without.result(),
            cards={name: card.result() for name, card in asked_cards.items()},
            asked_at=asked_at,
        )

    async def status(self) -> FetchedPage:
        return await self.get(f"{self.address.root}/status")

    async def get(self, path: str, key: Key | None = None) -> FetchedPage:
        """Never raises, whatever the server does."""
        async with self._turns:
            began = time.perf_counter()
            answer: HttpAnswer | None = None
            timeouts = Timeouts(connect_s=self._timeout_s)
            sent = self._key if key is None else key
            try:
                async with (
                    asyncio.timeout(2 * self._timeout_s),
                    asked(self.address, "GET", path, sent, timeouts=timeouts, head_s=self._timeout_s) as answer,
                ):
                    data = await answer.whole(MAX_PAGE_BYTES)
            except Broken as exc:
                return FetchedPage(problem=str(exc))
            except OSError as exc:  # TimeoutError is one
                reached = answer is not None
                return FetchedPage(
                    problem="its answer did not end in time" if reached else _reason(exc), reached=reached
                )
            return FetchedPage(
                status=answer.status,
                document=self._redactor.json(data),
                series=Series.parse(data.decode("utf-8", "replace"), self._redactor),
                headers={
                    name: self._redactor.text(answer.headers[name]) for name in KEPT_HEADERS if name in answer.headers
                },
                took_s=time.perf_counter() - began,
            )


def _tells_more(card: dict[str, Any]) -> bool:
    """Whether the model's own page has more. An alias has none, and while a model loads its page is refused."""
    return text(card.get("id")) is not None and "alias_of" not in card and card.get("state") != State.LOADING


def _reason(exc: OSError) -> str:
    return "there is no host with that name" if isinstance(exc, socket.gaierror) else reason(exc)
