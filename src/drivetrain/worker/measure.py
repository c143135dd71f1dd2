"""The metrics of one ended request, from the times it noted."""

from __future__ import annotations

from drivetrain.core.results import DeviceMemory, Metrics
from drivetrain.worker.run import Run


def measure(run: Run, memory: tuple[DeviceMemory, ...], average: tuple[DeviceMemory, ...]) -> Metrics:
    times = run.times
    assert times.ended is not None
    admitted = times.admitted if times.admitted is not None else times.ended
    prepared = times.prepared if times.prepared is not None else times.ended
    decode_s = (times.last_token or 0.0) - (times.first_token or 0.0)
    tokens = run.usage.completion_tokens
    return Metrics(
        queue_s=admitted - times.entered,
        prompt_s=max(0.0, prepared - admitted),
        first_token_s=None if times.first_token is None else times.first_token - times.entered,
        total_s=times.ended - times.entered,
        tokens_per_s=(tokens - 1) / decode_s if tokens > 1 and decode_s > 0 else None,
        started_at=times.wall,
        memory=memory,
        average_memory=average,
    )
