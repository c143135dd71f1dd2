"""What the sampler needs to know of a choice: it has one of these for each row of logits. No tensors here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from drivetrain.core.engine import EngineRequest


class Row(Protocol):
    """One choice of a request, at the position whose logits are there now.

    The engine appends what was sampled to `ids`, and changes nothing that was in them. It holds the same object from
    the first position to the last, because the sampler keeps its notes there.
    """

    shape: Any
    """The sampler's own notes on what was said; None at first. Engines leave it alone."""

    @property
    def request(self) -> EngineRequest:
        """Its `sampling`, `stop_ids`, `min_tokens` and `logprobs` count; the prompt and the seeds are below."""
        ...

    @property
    def seed(self) -> int:
        """Of this choice. With `num_sampled`, it decides the random number of the draw, and nothing else does."""
        ...

    @property
    def prompt_ids(self) -> Sequence[int]:
        """What the model was given. `encoder_repetition_penalty` and `encoder_no_repeat_ngram_size` look here."""
        ...

    @property
    def ids(self) -> Sequence[int]:
        """What the logits continue; every other penalty and ban looks here.

        It begins with the prompt. In an encoder-decoder model the prompt is in the encoder, and this begins with the
        decoder's start.
        """
        ...

    @property
    def num_sampled(self) -> int:
        """How many of the `ids` were sampled: the last ones."""
        ...
