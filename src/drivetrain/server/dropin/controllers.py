"""What FastChat's and DB-GPT's controllers are told of this worker: that it is here, that it still is, that it goes."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from drivetrain.address import Address
from drivetrain.server.dropin.fastchat import queue_length, status_of
from drivetrain.server.models import Models

ASK_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 2**20


class Away(Exception):
    """The controller does not answer, or not as it should."""


class Controller(Protocol):
    """All raise `Away`."""

    @property
    def address(self) -> Address: ...

    async def here(self) -> None:
        """Say that this worker is ready; again and again, so that a controller that forgot it knows it again."""
        ...

    async def gone(self) -> None: ...


@dataclass(slots=True)
class FastChatController:
    """It keeps workers by their addresses, and drops one from which it has not heard for a while (90 s)."""

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
            about = {"worker_name": self.worker, "check_heart_beat": True, "worker_status": status, "multimodal": False}
            await ask(self.address, "POST", "/register_worker", about)
            self._known = True

    async def gone(self) -> None:
        """There is no word for it: the controller asks all its workers anew, and finds that this one takes nothing."""
        await ask(self.address, "POST", "/refresh_all_workers")


@dataclass(slots=True)
class DbGptController:
    """It keeps a model at a host and a port, apart for texts and for embeddings, and takes a heartbeat for news."""

    address: Address
    worker: Address
    models: Models

    async def here(self) -> None:
        for instance in self._instances():
            await ask(self.address, "POST", "/api/controller/heartbeat", instance)

    async def gone(self) -> None:
        for instance in self._instances():
            await ask(self.address, "DELETE", f"/api/controller/models?{urlencode(instance)}")

    def _instances(self) -> Iterator[Mapping[str, Any]]:
        """A model that is not loaded is offered for texts: what it can do is not known before."""
        for member in self.models.members:
            capabilities = None if member.worker is None else member.worker.capabilities
            for name in (member.name, *member.aliases):
                if capabilities is None or capabilities.generation:
                    yield {"model_name": f"{name}@llm", "host": self.worker.host, "port": self.worker.port}
                if capabilities is not None and capabilities.embeddings:
                    yield {"model_name": f"{name}@text2vec", "host": self.worker.host, "port": self.worker.port}


async def ask(address: Address, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON of the answer; None where it is empty. In a thread, which no cancelling ends before `ASK_TIMEOUT_S`."""
    return await asyncio.to_thread(_ask, address, method, path, body)


def _ask(address: Address, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    try:
        with closing(kind(address.host, address.port, timeout=ASK_TIMEOUT_S)) as connection:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, address.root + path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            found = response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        raise Away(f"it does not answer ({type(exc).__name__})") from exc
    if response.status != http.client.OK:
        raise Away(f"it answers with status {response.status}")
    try:
        return json.loads(found) if found else None
    except ValueError as exc:
        raise Away("it does not answer in JSON") from exc
