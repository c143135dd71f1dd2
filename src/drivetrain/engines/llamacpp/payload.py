"""A request in the words of llama.cpp's `/completion`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineRequest

HONOURED = frozenset({
    "n", "seed", "min_tokens", "ignore_eos", "logprobs", "temperature", "top_p", "top_k", "min_p", "typical_p",
    "repetition_penalty", "logit_bias", "suppress_tokens", "begin_suppress_tokens", "cache_salt",
})  # fmt: skip
"""Not presence and frequency penalties: llama.cpp counts the prompt's tokens for them, the contract does not."""

_ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""Bias comes before all of them in every chain. llama.cpp's own order has the temperature last."""

_GREEDY_ORDER = ("penalties", "top_k")
"""The likeliest one alone is left. A temperature of 0 comes to the same, but then llama.cpp draws from the whole
vocabulary, with all of it impossible but one."""

_NO_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One completion of llama.cpp. A choice is mostly one leg; bans that end, and ends that do not, make more.

    `prompt` is ids, or a text with images. `forced` are ids that `grammar` makes llama.cpp sample first; `limit` counts
    those after them. `reuse`: what the slot's cache begins with may be seen. `keep_on` bans llama.cpp's own end tokens.
    """

    prompt: tuple[int, ...] | Mapping[str, Any]
    forced: tuple[int, ...] = ()
    grammar: str | None = None
    limit: int
    banned: frozenset[int]
    seed: int
    slot: int
    reuse: bool = True
    keep_on: bool = False

    @property
    def sampled(self) -> int:
        return len(self.forced) + self.limit


def completion(request: EngineRequest, leg: Leg) -> dict[str, Any]:
    """Every sampling field is stated, so no default of the server can come through."""
    sampling = request.sampling
    greedy = sampling.greedy
    body: dict[str, Any] = {
        "prompt": leg.prompt,
        "id_slot": leg.slot,
        "n_predict": leg.sampled,
        "seed": leg.seed,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "cache_prompt": leg.reuse and not request.seeded,
        "response_fields": ["stop", "stop_type", "tokens_predicted"],
        "samplers": _GREEDY_ORDER if greedy else _ORDER,
        "temperature": 0.0 if greedy else sampling.temperature,
        "top_k": 1 if greedy else sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": request.context_length,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": _biases(sampling.logit_bias.items(), leg.banned),
        "ignore_eos": leg.keep_on,
    }
    if leg.grammar is not None:
        body["grammar"] = leg.grammar
    if request.logprobs is not None:
        body["n_probs"] = max(1, request.logprobs)
        body["post_sampling_probs"] = False
    return body


def _biases(wanted: Iterable[tuple[int, float]], banned: frozenset[int]) -> Sequence[tuple[int, float | bool]]:
    """`false` is minus infinity to llama.cpp."""
    biases: list[tuple[int, float | bool]] = [(i, bias) for i, bias in wanted if i not in banned]
    return [*biases, *((i, False) for i in sorted(banned))]


def leg_seed(seed: int, position: int) -> int:
    """llama.cpp's 32 bits from our 64 and the place in the choice where the leg begins (SplitMix64's finish).

    The same on every machine; never the one value that means «random» to llama.cpp.
    """
    mask = 2**64 - 1
    mixed = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return ((mixed ^ (mixed >> 31)) >> 32) % _NO_SEED
