"""What `/completion` is asked: one value and the sampling parameters of its request become the JSON body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drivetrain.core.engine import EngineRequest
from drivetrain.text.grammar.lark import HEADER

HONOURED = frozenset({
    "n", "seed", "min_tokens", "ignore_eos", "logprobs", "temperature", "top_p", "top_k", "min_p", "typical_p",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "dry_sequence_breakers",
    "xtc_probability", "xtc_threshold", "repetition_penalty", "logit_bias", "suppress_tokens", "begin_suppress_tokens",
    "cache_salt", "constraint",
})  # fmt: skip
"""Not presence and frequency penalties: llama.cpp counts the prompt's tokens for them, the contract does not."""

SEVERAL_COMPLETIONS = frozenset({"min_tokens", "begin_suppress_tokens"})
"""What holds for a part of an answer only takes a completion a part. `remote` asks for one a choice and lacks these,
and no constraint goes with them: each completion would begin its grammar anew."""

LARK = HEADER
"""What the Lark text of a grammar begins with for llama.cpp, which takes any other text for GBNF.

A server that was built without llguidance ends its process at it.
"""

OVERSHOOT = 4
"""Ids past a limit that suffice to complete any half character, behind which llama.cpp would hide ids."""

ANY_SLOT = -1

_ORDER = ("penalties", "dry", "temperature", "top_k", "top_p", "min_p", "typ_p", "xtc")
"""Bias comes before all of them in every chain. llama.cpp's own order has the temperature last."""

_GREEDY_ORDER = ("penalties", "dry", "top_k")
"""The likeliest one alone is left. A temperature of 0 comes to the same, but then llama.cpp draws from the whole
vocabulary, with all of it impossible but one."""

_NO_BREAKERS = ("",)
"""An empty list is refused there, an empty text is passed over."""

_NO_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """`prompt` is ids, or a text with images. At most `limit` ids are sampled, none of them `banned`.

    `ignore_eos` bans llama.cpp's own end tokens. `reuse`: what the server has kept of earlier prompts may be seen.
    `grammar` is GBNF that takes the place of the request's own grammar.
    """

    prompt: tuple[int, ...] | Mapping[str, Any]
    limit: int
    seed: int
    banned: frozenset[int]
    ignore_eos: bool = False
    reuse: bool = True
    slot: int = ANY_SLOT
    grammar: str | None = None

    def body(self, request: EngineRequest) -> dict[str, Any]:
        """Every sampling field is stated, so no default of the server can come through."""
        sampling = request.sampling
        greedy = sampling.greedy
        body: dict[str, Any] = {
            "prompt": self.prompt,
            "id_slot": self.slot,
            "n_predict": self.limit,
            "seed": self.seed,
            "stream": True,
            "return_tokens": True,
            "return_progress": True,
            "cache_prompt": self.reuse and not request.seeded,
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
            "dry_multiplier": sampling.dry_multiplier,
            "dry_base": sampling.dry_base,
            "dry_allowed_length": sampling.dry_allowed_length,
            "dry_penalty_last_n": min(sampling.dry_range or request.context_length, request.context_length),
            "dry_sequence_breakers": sampling.dry_sequence_breakers or _NO_BREAKERS,
            "xtc_probability": sampling.xtc_probability,
            "xtc_threshold": sampling.xtc_threshold,
            "logit_bias": _biases(sampling.logit_bias.items(), self.banned),
            "ignore_eos": self.ignore_eos,
        }
        if self.grammar is not None:
            body["grammar"] = self.grammar
        elif request.grammar is not None:
            body["grammar"] = LARK + request.grammar.text
        if request.logprobs is not None:
            body["n_probs"] = max(1, request.logprobs)
            body["post_sampling_probs"] = False
        return body


def seed_at(seed: int, position: int = 0) -> int:
    """llama.cpp's 32 bits from our 64 and the place in the choice where the completion begins (SplitMix64's finish).

    The same on every machine; never the one value that means «random» to llama.cpp.
    """
    mask = 2**64 - 1
    mixed = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return ((mixed ^ (mixed >> 31)) >> 32) % _NO_SEED


def _biases(wanted: Iterable[tuple[int, float]], banned: frozenset[int]) -> list[tuple[int, float | bool]]:
    """`false` is minus infinity to llama.cpp."""
    biases: list[tuple[int, float | bool]] = [(i, bias) for i, bias in wanted if i not in banned]
    return [*biases, *((i, False) for i in sorted(banned))]
