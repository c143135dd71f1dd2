"""What the sampler needs to know of a choice, one for each row of logits. No tensors here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from drivetrain.core.engine import EngineRequest


class Row(Protocol):
    """One choice of a request, at the position whose logits are there now.

    The engine appends each sampled id to `ids` and changes nothing else in them. It keeps the same object from the
    first position to the last, because the sampler keeps its notes there.
    """

    shape: Any
    """The sampler's own notes; None at first. Engines leave it alone."""

    @property
    def request(self) -> EngineRequest:
        """For its `sampling`, `stop_ids`, `min_tokens` and `logprobs`; the prompt and the seed are below."""
        ...

    @property
    def seed(self) -> int:
        """Of this choice. It and `num_sampled` alone decide the random number of a draw."""
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
        """How many of the `ids`, the last ones, were sampled."""
        ...
