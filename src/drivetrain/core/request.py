"""A request for text, as the application states it. None means omitted: the defaults decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from drivetrain.core.messages import ImagePart, Message


class Overflow(StrEnum):
    """What to do when prompt and answer do not fit in the context together."""

    ERROR = "error"
    TRUNCATE_LEFT = "truncate_left"
    TRUNCATE_MIDDLE = "truncate_middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Exactly one of `messages`, `prompt` and `prompt_token_ids`; every other field may be left out.

    What each field means, which values it takes and who honours it stands in `core/parameters.py`; a field
    that the loaded model does not honour is refused by name before any work is done.
    """

    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    images: tuple[ImagePart, ...] | None = None

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    seed: int | None = None

    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_sequences: tuple[tuple[int, ...], ...] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None

    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_h: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    encoder_repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    guidance_scale: float | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    logit_bias: Mapping[int, float] | None = None
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None

    context_length: int | None = None
    overflow: Overflow | None = None
    timeout_s: float | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    trace_context: Mapping[str, str] | None = None

    @property
    def has_images(self) -> bool:
        return bool(self.images) or any(message.images for message in self.messages or ())
