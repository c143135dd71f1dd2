"""What `/completion` streams, frame by frame, and the steps of a choice that come of it.

llama.cpp sends nothing while its text ends in half a character. The first frame after such a gap has the text of all of
it, and its count tells how many ids are missing. Working them out takes the vocabulary: `llamacpp` has one, `remote`
asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drivetrain.core.engine import EngineRequest, IdLogprobs, TokenStep
from drivetrain.core.errors import EngineFailed
from drivetrain.core.results import FinishReason
from drivetrain.engines.base.room import room

_REASONS = {"eos": FinishReason.STOP, "limit": FinishReason.LENGTH}


class PromptFrame(NamedTuple):
    """How long the prompt is, and how much of it was cached."""

    total: int
    cached: int


class TokenFrame(NamedTuple):
    """Mostly one id. `predicted` counts all that were sampled until then, `text` spells those since the last frame."""

    ids: tuple[int, ...]
    predicted: int
    text: str
    probabilities: Sequence[Mapping[str, Any]]

    def missing(self, received: int) -> int:
        """How many ids stand before these that no frame had."""
        return max(0, self.predicted - received - len(self.ids))

    def spellings(self) -> Iterator[tuple[int, bytes]]:
        """Each id that is named beside a probability."""
        for entry in self.probabilities:
            for told in (entry, *entry["top_logprobs"]):
                yield int(told["id"]), bytes(told["bytes"])

    def logprobs(self, count: int) -> tuple[IdLogprobs, ...]:
        """With `count` alternatives each, of a frame that should have them."""
        return tuple(
            IdLogprobs(
                min(0.0, float(entry["logprob"])),
                tuple((int(told["id"]), min(0.0, float(told["logprob"]))) for told in entry["top_logprobs"][:count]),
            )
            for _, entry in zip(self.ids, self.probabilities, strict=True)
        )


class EndFrame(NamedTuple):
    """The last one: llama.cpp's own end token, or its limit or a full context. `reason` None: something unknown."""

    reason: FinishReason | None
    predicted: int


def read(event: Mapping[str, Any]) -> PromptFrame | TokenFrame | EndFrame:
    """Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for what is no frame of llama.cpp's."""
    if "prompt_progress" in event:
        progress = event["prompt_progress"]
        return PromptFrame(int(progress["total"]), int(progress["cache"]))
    predicted = int(event["tokens_predicted"])
    if event["stop"]:
        return EndFrame(_REASONS.get(event["stop_type"]), predicted)
    ids = tuple(map(int, event["tokens"]))
    return TokenFrame(ids, predicted, str(event["content"]), event.get("completion_probabilities", ()))


class ChoiceIds:
    """The ids of one choice, up to its first stop id or its limit, wherever llama.cpp itself ends."""

    def __init__(self, index: int, request: EngineRequest) -> None:
        self.index = index
        self.limit = room(request)
        self.sampled: list[int] = []
        self._request = request

    def step(self, frame: TokenFrame, found: tuple[int, ...] = ()) -> TokenStep:
        """`found` are the ids that were missing before the frame. Their logprobs were never sent."""
        ids, count, logprobs = found + frame.ids, self._request.logprobs, None
        if count is not None:
            logprobs = (*[IdLogprobs(None)] * len(found), *frame.logprobs(count))
        for taken, token_id in enumerate(ids, 1):
            self.sampled.append(token_id)
            if (reason := self._reason(token_id)) is not None:
                return TokenStep(self.index, ids[:taken], None if logprobs is None else logprobs[:taken], reason)
        return TokenStep(self.index, ids, logprobs)

    def _reason(self, token_id: int) -> FinishReason | None:
        if token_id in self._request.stop_ids and len(self.sampled) > self._request.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.sampled) >= self.limit else None


def unspelled(count: int) -> EngineFailed:
    """The error of a gap whose ids cannot be worked out."""
    return EngineFailed(f"llama.cpp's stream left out {count} tokens that cannot be worked out from its text")
