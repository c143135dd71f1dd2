"""What one loaded model can do, and the limits on what a request may ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps on what a request may ask for. All are settings; the defaults suit a shared server."""

    max_n: int = 16
    max_stops: int = 16
    max_stop_chars: int = 1000
    max_logprobs: int = 20
    max_constraint_chars: int = 500_000
    max_tools: int = 128
    max_messages: int = 1024
    max_prompt_chars: int = 4_000_000
    max_ids: int = 10_000
    max_embed_inputs: int = 2048
    max_images: int = 16
    max_image_bytes: int = 20_000_000
    max_image_pixels: int = 40_000_000
    max_request_pixels: int = 100_000_000
    max_answer_bytes: int = 128 * 2**20
    max_timeout_s: float = 3600.0


class Reproducibility(StrEnum):
    """Whether the same request with the same seed gets the same text again."""

    EXACT = "exact"
    """Always, on the same machine and versions, whatever else runs."""
    BEST_EFFORT = "best_effort"
    """The draws are the same; the numbers that are drawn from depend in their last bits on what runs beside it."""


class RerankWay(StrEnum):
    """How a model tells how well a document fits a query."""

    HEAD = "score_head"
    """A head of its own gives one number for the two texts."""
    LOGITS = "yes_no"
    """It is asked, and its logits of yes and no are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """`parameters` are the request fields that this model honours; any other field is refused by name.

    `tokens` is False for an engine that gives text only; the contract suite then requires less of it.
    """

    parameters: frozenset[str]
    tokens: bool = True
    chat: bool = True
    vision: bool = False
    embeddings: bool = False
    generation: bool = True
    rerank: RerankWay | None = None
    """Engines state a head; that a model can be asked follows from its parameters (`declared` in `worker/model.py`)."""
    template_variables: frozenset[str] = frozenset()
    """What `chat_template_kwargs` may set."""
    context_length: int
    max_concurrency: int = 1
    limits: Limits = Limits()

    @property
    def reproducibility(self) -> Reproducibility:
        """What holds for every answer; a request that demands more is refused."""
        demanded = "reproducibility" in self.parameters
        return Reproducibility.EXACT if demanded else Reproducibility.BEST_EFFORT
