"""What one ended request comes to: its metrics, from the times it noted, and its part of the worker's counts."""

from __future__ import annotations

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.results import DeviceMemory, Metrics
from drivetrain.core.stats import Stats, ending
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


def count(stats: Stats, run: Run, error: DrivetrainError | None) -> None:
    """What is not counted while it happens."""
    times, usage = run.times, run.usage
    assert times.ended is not None
    stats.endings[ending(error)] += 1
    stats.prompt_tokens += usage.prompt_tokens
    stats.cached_tokens += usage.cached_tokens
    if times.admitted is not None:
        stats.request_s.observe(times.ended - times.entered)
    if error is None:
        if times.first_token is not None and times.last_token is not None and usage.completion_tokens > 1:
            stats.decode_s.observe(times.last_token - times.first_token)
        stats.answers.update(run.finish_reasons)
        stats.prompt_length.observe(usage.prompt_tokens)
        stats.answer_length.observe(usage.completion_tokens)
