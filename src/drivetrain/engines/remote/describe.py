"""What is known about a model on another server, before any request."""

from __future__ import annotations

import asyncio

from drivetrain.core.engine import Description, ModelSpec, Progress
from drivetrain.core.kinds import MAX_INT
from drivetrain.engines.remote.engine import RemoteEngine


def of_upstream(spec: ModelSpec, progress: Progress) -> Description:
    """Raises what loading would raise. Blocks, so not for a thread with an event loop."""
    return asyncio.run(_describe(spec, progress))


async def _describe(spec: ModelSpec, progress: Progress) -> Description:
    engine = RemoteEngine()
    try:
        info = await engine.load(spec, progress)
        length = info.capabilities.context_length
        return Description(
            tokenizer=info.tokenizer,
            architecture=info.architecture,
            capabilities=info.capabilities,
            context_length=None if length == MAX_INT else length,
            eos_ids=info.eos_ids,
            default_sampling=info.default_sampling,
            missing=info.notes,
        )
    finally:
        await engine.close()
