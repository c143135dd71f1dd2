"""Waiting until llama.cpp has really let go of a slot after its connection was closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drivetrain.engines.llamacpp.connection import Connection

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


async def until_idle(connection: Connection, slot: int, alive: Callable[[], bool]) -> None:
    """Returns at most one step of the server later. Cancelling does not cut it short; it is passed on afterwards."""
    waiting = asyncio.ensure_future(_poll(connection, slot, alive))
    cancelled = False
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled = True
    waiting.result()
    if cancelled:
        raise asyncio.CancelledError


async def _poll(connection: Connection, slot: int, alive: Callable[[], bool]) -> None:
    """The server answers between two of its steps."""
    pause_s = FIRST_PAUSE_S
    while alive():
        try:
            slots = await connection.ask("GET", "/slots")
        except (OSError, EOFError):
            slots = None
        if slots is not None and not any(s["id"] == slot and s["is_processing"] for s in slots):
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
