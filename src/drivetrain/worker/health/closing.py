"""Closes an engine in bounded time: one that does not close in time counts as hung and is waited for no longer."""

from __future__ import annotations

import asyncio
import logging

from drivetrain.core.engine import Engine

CLOSE_S = 12.0
"""Longer than any healthy engine needs: one step of a model, or the time to kill its processes."""

_log = logging.getLogger(__name__)


async def close(engine: Engine) -> bool:
    """Free all that it holds. False if it hangs: it may then hold its memory as long as this process lives."""
    try:
        async with asyncio.timeout(CLOSE_S) as limit:
            await engine.close()
    except TimeoutError:
        if not limit.expired():
            _log.exception("an engine did not close cleanly")
    except Exception:  # noqa: BLE001 - there is nothing more to do for it
        _log.exception("an engine did not close cleanly")
    return not limit.expired()
