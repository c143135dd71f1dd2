"""Choose the next ids of a batch: the library's own processors in their order, our draw with a seed a row.

`generate()` has one global random generator and takes logprobs after its processors. So everything that shapes
the distribution happens in here, as one logits processor that returns the choice already made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from drivetrain.core.engine import EngineRequest, IdLogprobs
from drivetrain.core.errors import EngineFailed, InvalidRequest
from drivetrain.core.sampling import Sampling

Processor = Callable[[Any, Any], Any]


class RowSampler:
    """Called by `generate()` with all ids so far and the raw logits of the next position, both one row a choice."""

    def __init__(
        self, request: EngineRequest, model: Any, structure: Any, *, prompt_length: int, encoder_ids: Any
    ) -> None:
        sampling = request.sampling
        self._top = request.logprobs
        self._greedy = sampling.greedy
        bans = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "no_repeat_ngram_size")
        self._ban = next((name for name in bans if getattr(sampling, name)), "logit_bias")
        self._min_tokens = request.min_tokens
        self._stop_ids = sorted(request.stop_ids)
        self._prompt_length = prompt_length
        self._processors = [
            *penalties(sampling, model, prompt_length, encoder_ids, request.stop_ids),
            *structural(structure, prompt_length, request.max_tokens, model.device),
        ]
        self._warpers = [] if sampling.greedy else warpers(sampling, model.device)
        self._generators = [_generator(seed, model.device) for seed in request.seeds]
        self.logprobs: list[IdLogprobs] | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        raw = scores
        if torch.isnan(raw).any():
            raise EngineFailed("the model produced NaN logits; its weights are damaged or its dtype is too small")
        for processor in self._processors:
            scores = processor(input_ids, scores)
        sampled = input_ids.shape[1] - self._prompt_length
        if sampled < self._min_tokens and self._stop_ids:
            scores = scores.clone()
            scores[:, [i for i in self._stop_ids if i < scores.shape[1]]] = -torch.inf
        chosen = self._choose(input_ids, scores)
        if self._top is not None:
            self.logprobs = logprobs_of(raw, chosen, self._top)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _choose(self, input_ids: Any, scores: Any) -> Any:
        if torch.isneginf(scores.amax(dim=-1)).any():
            raise InvalidRequest("the bans of this request leave no token to sample", param=self._ban)
        if self._greedy:
            return scores.argmax(dim=-1)
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        probabilities = torch.softmax(scores, dim=-1)
        drawn = [
            torch.multinomial(row, 1, generator=generator)
            for row, generator in zip(probabilities, self._generators, strict=True)
        ]
        return torch.cat(drawn)


def _generator(seed: int, device: Any) -> Any:
    return torch.Generator(device=device).manual_seed(seed)


def logprobs_of(raw: Any, ids: Any, count: int) -> list[IdLogprobs]:
    """One entry a row: the logprob of its id and the `count` likeliest ids, in the raw distribution."""
    logprobs = torch.log_softmax(raw.float(), dim=-1)
    own = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    if not count:
        return [IdLogprobs(value) for value in own]
    values, indices = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1)
    return [
        IdLogprobs(value, tuple(zip(row_ids, row_values, strict=True)))
        for value, row_ids, row_values in zip(own, indices.tolist(), values.tolist(), strict=True)
    ]


def penalties(
    sampling: Sampling, model: Any, prompt_length: int, encoder_ids: Any, stop_ids: frozenset[int]
) -> list[Processor]:
    """Everything before the temperature, in the order of `generate()`."""
    import transformers.generation as hf

    device, eos = model.device, torch.tensor(sorted(stop_ids), device=model.device)
    made: list[Processor] = []
    if sampling.guidance_scale != 1.0:
        made.append(hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(sampling.guidance_scale, model))
    biases = {(i,): b for i, b in sampling.logit_bias.items()} | dict(sampling.sequence_bias)
    if biases:
        made.append(hf.SequenceBiasLogitsProcessor([[list(ids), float(b)] for ids, b in biases.items()]))
    if sampling.encoder_repetition_penalty != 1.0:
        made.append(hf.EncoderRepetitionPenaltyLogitsProcessor(sampling.encoder_repetition_penalty, encoder_ids))
    if sampling.repetition_penalty != 1.0:
        made.append(hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        made.append(CountPenalty(sampling.presence_penalty, sampling.frequency_penalty, prompt_length))
    if sampling.no_repeat_ngram_size:
        made.append(hf.NoRepeatNGramLogitsProcessor(sampling.no_repeat_ngram_size))
    if sampling.encoder_no_repeat_ngram_size:
        made.append(hf.EncoderNoRepeatNGramLogitsProcessor(sampling.encoder_no_repeat_ngram_size, encoder_ids))
    if sampling.bad_words_ids:
        made.append(hf.NoBadWordsLogitsProcessor([list(ids) for ids in sampling.bad_words_ids]))
    if sampling.exponential_decay_length_penalty is not None and stop_ids:
        made.append(hf.ExponentialDecayLengthPenalty(sampling.exponential_decay_length_penalty, eos, prompt_length))
    if sampling.suppress_tokens:
        made.append(hf.SuppressTokensLogitsProcessor(sampling.suppress_tokens, device=device))
    if sampling.begin_suppress_tokens:
        made.append(
            hf.SuppressTokensAtBeginLogitsProcessor(sampling.begin_suppress_tokens, prompt_length, device=device)
        )
    return made


def structural(structure: Any, prompt_length: int, max_tokens: int | None, device: Any) -> list[Processor]:
    """Ids that the model's generation_config forces at the first or last place (BART and its kin)."""
    import transformers.generation as hf

    made: list[Processor] = []
    if structure.forced_bos_token_id is not None:
        made.append(hf.ForcedBOSTokenLogitsProcessor(structure.forced_bos_token_id))
    if structure.forced_eos_token_id is not None and max_tokens is not None:
        made.append(
            hf.ForcedEOSTokenLogitsProcessor(prompt_length + max_tokens, structure.forced_eos_token_id, device=device)
        )
    return made


def warpers(sampling: Sampling, device: Any) -> list[Processor]:
    """Temperature and the cut-offs, in the order of `generate()`."""
    import transformers.generation as hf

    made: list[Processor] = []
    if sampling.temperature != 1.0:
        made.append(hf.TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_h < 1.0:
        made.append(hf.TopHLogitsWarper(top_h=float(sampling.top_h)))
    if sampling.top_k:
        made.append(hf.TopKLogitsWarper(top_k=sampling.top_k))
    if sampling.top_p < 1.0:
        made.append(hf.TopPLogitsWarper(top_p=float(sampling.top_p)))
    if sampling.min_p:
        made.append(hf.MinPLogitsWarper(min_p=float(sampling.min_p)))
    if sampling.typical_p < 1.0:
        made.append(hf.TypicalLogitsWarper(mass=float(sampling.typical_p)))
    if sampling.epsilon_cutoff:
        made.append(hf.EpsilonLogitsWarper(epsilon=float(sampling.epsilon_cutoff)))
    if sampling.eta_cutoff:
        made.append(hf.EtaLogitsWarper(epsilon=float(sampling.eta_cutoff), device=device))
    return made


class CountPenalty:
    """OpenAI's presence and frequency penalties, over the sampled ids only."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._prompt_length = prompt_length

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        sampled = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, sampled, torch.ones_like(sampled, dtype=scores.dtype))
        return scores - self._frequency * counts - self._presence * (counts > 0)


def one_by_one(raw: Any, ids: Sequence[int], count: int, rows: int = 256) -> list[IdLogprobs]:
    """Logprobs of many positions, some rows at a time, so that no second copy of all logits is made."""
    made: list[IdLogprobs] = []
    for start in range(0, len(ids), rows):
        chunk = torch.tensor(ids[start : start + rows], device=raw.device)
        made += logprobs_of(raw[start : start + rows], chunk, count)
    return made
