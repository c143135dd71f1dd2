"""One log line per request, when it ends: its id, model and ending, its tokens and times."""

from __future__ import annotations

import logging

from drivetrain.core.constraint import Constraint, is_open
from drivetrain.core.errors import DrivetrainError
from drivetrain.core.results import Embeddings, FinishReason, Metrics, Ranking, Usage
from drivetrain.core.stats import EndedRequest, ending
from drivetrain.telemetry.logs import FIELDS

_log = logging.getLogger("drivetrain.requests")


def ended(
    run: EndedRequest, error: DrivetrainError | None, metrics: Metrics, constraint: Constraint | None = None
) -> None:
    """An answer that was cut off within an open schema says so: the model may have added keys until its limit."""
    if not _log.isEnabledFor(logging.INFO):
        return
    usage, times = run.usage, [("queue", metrics.queue_s), ("first", metrics.first_token_s), ("total", metrics.total_s)]
    reasons = [str(reason) for reason in run.finish_reasons]
    is_astray = FinishReason.LENGTH in run.finish_reasons and constraint is not None and is_open(constraint)
    fields = {
        "request_id": run.request_id,
        "model": run.model,
        "ending": ending(error),
        "finish_reasons": reasons,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        **{f"{name}_s": None if seconds is None else round(seconds, 6) for name, seconds in times},
        **({"open_schema": True} if is_astray else {}),
    }
    shown = " ".join(f"{name} {seconds:.3f}" for name, seconds in times if seconds is not None)
    shown += " (its schema is open: see additionalProperties)" if is_astray else ""
    how = ending(error) + (f"({','.join(reasons)})" if reasons else "")
    tokens = f"{usage.prompt_tokens}+{usage.completion_tokens} tokens"
    _log.info("%s %s %s %s %s", run.request_id, run.model, how, tokens, shown, extra={FIELDS: fields})


def embedded(
    request_id: str, model: str, error: BaseException | None, embeddings: Embeddings | None, seconds: float
) -> None:
    made = (Usage(), 0) if embeddings is None else (embeddings.usage, len(embeddings.vectors))
    _texts(request_id, model, error, "vectors", *made, seconds)


def reranked(request_id: str, model: str, error: BaseException | None, ranking: Ranking | None, seconds: float) -> None:
    made = (Usage(), 0) if ranking is None else (ranking.usage, len(ranking.scores))
    _texts(request_id, model, error, "scores", *made, seconds)


def _texts(
    request_id: str, model: str, error: BaseException | None, what: str, usage: Usage, number: int, seconds: float
) -> None:
    if _log.isEnabledFor(logging.INFO):
        fields = {
            "request_id": request_id,
            "model": model,
            "ending": ending(error),
            "prompt_tokens": usage.prompt_tokens,
            what: number,
            "total_s": round(seconds, 6),
        }
        shown = "%s %s %s %d %s of %d tokens total %.3f"
        values = (request_id, model, ending(error), number, what, usage.prompt_tokens, seconds)
        _log.info(shown, *values, extra={FIELDS: fields})


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
