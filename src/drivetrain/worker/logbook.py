"""One log line per request, when it ends: its id, model and ending, its tokens and times."""

from __future__ import annotations

import logging

from drivetrain.core.errors import DrivetrainError
from drivetrain.core.results import Embeddings, Metrics
from drivetrain.core.stats import EndedRequest, ending
from drivetrain.telemetry.logs import FIELDS

_log = logging.getLogger("drivetrain.requests")


def ended(run: EndedRequest, error: DrivetrainError | None, metrics: Metrics) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    usage, times = run.usage, [("queue", metrics.queue_s), ("first", metrics.first_token_s), ("total", metrics.total_s)]
    reasons = [str(reason) for reason in run.finish_reasons]
    fields = {
        "request_id": run.request_id,
        "model": run.model,
        "ending": ending(error),
        "finish_reasons": reasons,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        **{f"{name}_s": None if seconds is None else round(seconds, 6) for name, seconds in times},
    }
    shown = " ".join(f"{name} {seconds:.3f}" for name, seconds in times if seconds is not None)
    how = ending(error) + (f"({','.join(reasons)})" if reasons else "")
    tokens = f"{usage.prompt_tokens}+{usage.completion_tokens} tokens"
    _log.info("%s %s %s %s %s", run.request_id, run.model, how, tokens, shown, extra={FIELDS: fields})


def embedded(
    request_id: str, model: str, error: BaseException | None, embeddings: Embeddings | None, seconds: float
) -> None:
    if _log.isEnabledFor(logging.INFO):
        tokens, vectors = (0, 0) if embeddings is None else (embeddings.usage.prompt_tokens, len(embeddings.vectors))
        fields = {
            "request_id": request_id,
            "model": model,
            "ending": ending(error),
            "prompt_tokens": tokens,
            "vectors": vectors,
            "total_s": round(seconds, 6),
        }
        shown = "%s %s %s %d vectors of %d tokens total %.3f"
        _log.info(shown, request_id, model, ending(error), vectors, tokens, seconds, extra={FIELDS: fields})


def tokenized(request_id: str, model: str, error: BaseException | None, tokens: int, seconds: float) -> None:
    if _log.isEnabledFor(logging.INFO):
        fields = {
            "request_id": request_id,
            "model": model,
            "ending": ending(error),
            "tokens": tokens,
            "total_s": round(seconds, 6),
        }
        shown = "%s %s %s %d tokens of a text total %.3f"
        _log.info(shown, request_id, model, ending(error), tokens, seconds, extra={FIELDS: fields})


def refused(request_id: str, model: str, error: DrivetrainError) -> None:
    """A request that was refused before it had a run."""
    if _log.isEnabledFor(logging.INFO):
        fields = {"request_id": request_id, "model": model, "ending": error.code, "param": error.param}
        _log.info("%s %s %s %s", request_id, model, error.code, error.param or "", extra={FIELDS: fields})
