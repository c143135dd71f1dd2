"""The port between load and what bears it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from drivetrain.tools.bench.outcome import Failure, Outcome
from drivetrain.tools.bench.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a target. `stated` goes into reports as it is; the rest is None where it is not known."""

    kind: str
    model: str
    engine: str | None = None
    device: str | None = None
    dtype: str | None = None
    max_concurrency: int | None = None
    weights: Weights | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)


class Target(Protocol):
    """Something that answers. It is ready when it is given to a session."""

    label: str
    """Short, and different from the other side's."""

    @property
    def facts(self) -> Facts: ...

    async def ask(self, prompt: str, max_tokens: int, due: float | None) -> Outcome:
        """One answer, greedy, of exactly `max_tokens` where the target can be asked for that.

        Its time begins at `due`, or else when it is sent. Failures are outcomes; only cancelling raises, and nothing
        of the request is left then.
        """
        ...

    def advice(self, failure: Failure) -> str:
        """What to do about a refusal, as a sentence to put behind it; empty if nothing is known."""
        ...
