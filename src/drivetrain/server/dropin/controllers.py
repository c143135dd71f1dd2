"""Tells FastChat's and DB-GPT's controllers about this worker: that it is here, still here, or leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from drivetrain.http.address import Address
from drivetrain.http.client import connected
from drivetrain.http.parser import Broken
from drivetrain.server.dropin.fastchat import queue_length, status_of
from drivetrain.server.models import Models

ASK_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 2**20


class Away(Exception):
    """The controller does not answer, or answers with an error."""


class Controller(Protocol):
    """All methods raise `Away`."""

    @property
    def address(self) -> Address: ...

    async def here(self) -> None:
        """Say that this worker is ready. Called again and again, in case the controller forgot it."""
        ...

    async def gone(self) -> None: ...


@dataclass(slots=True)
class FastChatController:
    """Knows workers by their addresses, and drops one that it has not heard from for a while (90 s)."""

    address: Address
    worker: str
    """This worker's URL, as the controller and the API servers reach it."""
    models: Models
    _known: bool = False

    async def here(self) -> None:
        if self._known:
            beat = {"worker_name": self.worker, "queue_length": queue_length(self.models)}
            answer = await ask(self.address, "POST", "/receive_heart_beat", beat)
            self._known = isinstance(answer, dict) and bool(answer.get("exist"))
        if not self._known:
            status = status_of(self.models)
            body = {"worker_name": self.worker, "check_heart_beat": True, "worker_status": status, "multimodal": False}
            await ask(self.address, "POST", "/register_worker", body)
            self._known = True

    async def gone(self) -> None:
        """The protocol has no call for it, so have the controller ask all its workers: this one no longer accepts."""
        await ask(self.address, "POST", "/refresh_all_workers")


@dataclass(slots=True)
class DbGptController:
    """Knows models by host and port, separately for texts and for embeddings; a heartbeat registers one."""

    address: Address
    worker: Address
    models: Models
    _kinds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What each model that was ever loaded is offered for, even while it is unloaded."""
    _registered: dict[str, None] = field(default_factory=dict)
    """Names, in the order in which they were registered."""

    async def here(self) -> None:
        offered = list(self._offered())
        for name in offered:
            self._registered[name] = None
            await ask(self.address, "POST", "/api/controller/heartbeat", self._instance(name))
        await self._unregister([name for name in self._registered if name not in offered])

    async def gone(self) -> None:
        await self._unregister(list(self._registered))

    def _offered(self) -> Iterator[str]:
        """A model that was never loaded is offered for texts, because what it can do is not known yet."""
        for member in self.models.members:
            if member.worker is not None:
                capabilities = member.worker.capabilities
                kinds = ("llm",) * capabilities.generation + ("text2vec",) * capabilities.embeddings
                self._kinds[member.name] = kinds
            for name in (member.name, *member.aliases):
                for kind in self._kinds.get(member.name, ("llm",)):
                    yield f"{name}@{kind}"

    async def _unregister(self, names: list[str]) -> None:
        """All at once, so that a controller that hangs delays the shutdown only once. Raises the first failure."""
        results = await asyncio.gather(*map(self._remove, names), return_exceptions=True)
        for failure in results:
            if failure is not None:
                raise failure

    async def _remove(self, name: str) -> None:
        await ask(self.address, "DELETE", f"/api/controller/models?{urlencode(self._instance(name))}")
        del self._registered[name]

    def _instance(self, name: str) -> Mapping[str, Any]:
        return {"model_name": name, "host": self.worker.host, "port": self.worker.port}


async def ask(address: Address, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON of the answer, or None if empty. `ASK_TIMEOUT_S` is for the connection, and again for all the rest."""
    headers, data = {"content-type": "application/json"}, b"" if body is None else json.dumps(body).encode()
    try:
        async with connected(address, timeout_s=ASK_TIMEOUT_S) as connection, asyncio.timeout(ASK_TIMEOUT_S):
            answer = await connection.ask(method, address.root + path, headers, data)
            text = await answer.whole(MAX_ANSWER_BYTES)
    except (OSError, Broken) as exc:
        raise Away(f"it does not answer ({type(exc).__name__})") from exc
    if answer.status != 200:
        raise Away(f"it answered with status {answer.status}")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as exc:
        raise Away("its answer is not JSON") from exc
