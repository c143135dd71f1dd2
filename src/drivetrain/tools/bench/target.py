"""The port between the load and what answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from drivetrain.tools.bench.outcome import Failure, RequestOutcome
from drivetrain.tools.bench.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What is known about a target. `stated` goes into reports as it is; anything else is None if not known."""

    kind: str
    model: str
    engine: str | None = None
    device: str | None = None
    dtype: str | None = None
    max_concurrency: int | None = None
    weights: Weights | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)


class Target(Protocol):
    """Something that answers requests, and is ready when a session gets it."""

    label: str
    """Short, and different from the other side's."""

    @property
    def facts(self) -> TargetFacts: ...

    async def ask(self, prompt: str, max_tokens: int, due: float | None) -> RequestOutcome:
        """One greedy answer, of exactly `max_tokens` if the target can be asked for that.

        Its time begins at `due` or, without one, when the request is sent. Failures are outcomes; only cancelling
        raises, and leaves nothing of the request.
        """
        ...

    def advice(self, failure: Failure) -> str:
        """What to do about a refusal, as a sentence to append; empty if nothing is known."""
        ...
