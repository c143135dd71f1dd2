"""How the next token is chosen, with every value settled: what a request leaves out has been filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MIN_TEMPERATURE = 1e-5
"""Below this, dividing by it overflows and only the likeliest id would be left: such requests are greedy."""

DRY_BREAKERS = ("\n", ":", '"', "*")

_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Each default is neutral: it changes nothing. `temperature` 0 is greedy.

    The order on every engine: raw logits (logprobs are taken here), penalties and bias (DRY last), bans, temperature,
    then the cut-offs (top-k, top-p, min-p, …; XTC last), then the draw.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_h: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    encoder_repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    guidance_scale: float = 1.0
    exponential_decay_length_penalty: tuple[int, float] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE or self.top_k == 1
