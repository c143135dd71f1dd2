"""Keeps a server registered with its controllers, from when its models are ready until they drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from drivetrain.server.dropin.controllers import Away, Controller
from drivetrain.server.models import Models

BEAT_S = 15.0
"""Both kinds of controller drop a silent worker after 60 s or more; one that forgot it relearns it within this time."""

AWAY_S = 3.0
"""Between two attempts while a controller is away."""

_log = logging.getLogger("drivetrain.server")


class Registration:
    """One task per controller: one that is away is retried, and holds up neither the others nor this server.

    While the models are not ready no heartbeat is sent, so that controllers eventually stop sending requests here.
    """

    def __init__(
        self, controllers: Sequence[Controller], models: Models, *, beat_s: float = BEAT_S, away_s: float = AWAY_S
    ) -> None:
        self._controllers = controllers
        self._models = models
        self._beat_s = beat_s
        self._away_s = away_s
        self._ending = asyncio.Event()
        self._registered: list[Controller] = []
        self._tasks: list[asyncio.Task[None]] = []

    def after(self, start: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same `start`, followed by the registration."""

        async def started() -> None:
            await start()
            self._tasks = [asyncio.create_task(self._keep(c), name="drivetrain-register") for c in self._controllers]

        return started

    def before(self, drain: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same `drain`, with the controllers told meanwhile."""

        async def drained() -> None:
            self._ending.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(_until_done(drain))
                group.create_task(self._leave())

        return drained

    async def __aenter__(self) -> Registration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, controller: Controller) -> None:
        reason, new = "", True
        while not self._ending.is_set():
            try:
                if self._models.ready:
                    await controller.here()
                    if new:
                        self._registered.append(controller)
                    if new or reason:
                        _log.info("registered with the controller %s", controller.address.authority)
                    reason, new = "", False
            except Away as exc:
                if reason != str(exc):
                    _log.warning(
                        "the controller %s is unavailable: %s; trying again", controller.address.authority, exc
                    )
                reason = str(exc)
            except Exception:  # noqa: BLE001 - nobody awaits this task, so nobody would see the error
                reason = "an internal error"
                _log.exception("could not notify the controller %s", controller.address.authority)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat_s if not reason else self._away_s):
                    await self._ending.wait()

    async def _leave(self) -> None:
        """First let calls in progress end: a heartbeat that came later would bring this worker back."""
        await asyncio.gather(*self._tasks)
        async with asyncio.TaskGroup() as group:
            for controller in self._registered:
                group.create_task(_take_leave(controller))


async def _take_leave(controller: Controller) -> None:
    try:
        await controller.gone()
    except Away as exc:
        _log.warning("could not tell the controller %s that this worker stops: %s", controller.address.authority, exc)
    except Exception:  # noqa: BLE001 - the drain and the other controllers go on
        _log.exception("could not tell the controller %s that this worker stops", controller.address.authority)


async def _until_done(work: Callable[[], Awaitable[None]]) -> None:
    await work()
