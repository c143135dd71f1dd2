"""A language model of a page: words after words by a fixed chance, and every way to bend it that the cases ask for."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

WORDS = [
    " the",
    " boat",
    " sea",
    " wind",
    " small",
    " and",
    " of",
    " house",
    " red",
    " under",
    " over",
    " quick",
    " fox",
    " moon",
    " sail",
    " harbour",
    " é",
    " 你好",
    " 世界",
    " 🌍",
    " 🎉",
    " 🌍🎉",
    "!🌍",
    " light",
    " night",
    " went",
    " came",
    " home",
    " far",
    ", then",
    ". It",
    " was",
    " old",
    " again",
    " with",
    " salt",
    " water",
    " stone",
    "ing",
    "er",
]
BYTES = 256
EOS = BYTES + len(WORDS)
SIZE = EOS + 1
ENDS_AFTER = 28
"""Tokens, after which the model ends its answer by itself."""

_PIECES = re.compile("|".join(map(re.escape, sorted(WORDS, key=len, reverse=True))))


def encode(text: str) -> list[int]:
    ids: list[int] = []
    at = 0
    for match in _PIECES.finditer(text):
        ids += text[at : match.start()].encode(errors="replace")
        ids.append(BYTES + WORDS.index(match.group()))
        at = match.end()
    return [*ids, *text[at:].encode(errors="replace")]


def spelled(token: int) -> bytes:
    if token < BYTES:
        return bytes([token])
    return b"" if token == EOS else WORDS[token - BYTES].encode()


def decode(ids: list[int]) -> str:
    return b"".join(map(spelled, ids)).decode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _raw(last: int, before: int) -> tuple[float, ...]:
    """Logits of the words after two tokens. Bytes are nearly impossible."""
    chance = random.Random(f"{last} {before}")
    return (*([-20.0] * BYTES), *(chance.uniform(0, 5) for _ in WORDS), -20.0)


@dataclass(kw_only=True)
class Sampling:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    min_tokens: int = 0


@dataclass(frozen=True)
class Step:
    token: int
    logprob: float
    top: list[tuple[int, float]]


def logprobs(logits: list[float]) -> list[float]:
    peak = max(logits)
    total = math.log(sum(math.exp(x - peak) for x in logits)) + peak
    return [x - total for x in logits]


def step(context: list[int], said: list[int], sampling: Sampling, chance: random.Random) -> Step:
    last, before = ([0, 0, *context, *said])[-1:-3:-1]
    logits = list(_raw(last, before))
    if len(said) >= max(ENDS_AFTER, sampling.min_tokens) and not sampling.ignore_eos:
        logits[EOS] = 50.0
    raw = logprobs(logits)
    for token, count in Counter(said).items():
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
        logits[token] *= 1 / sampling.repetition_penalty if logits[token] > 0 else sampling.repetition_penalty
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
    token = _choose(logits, sampling, chance)
    top = sorted(enumerate(raw), key=lambda item: -item[1])[:20]
    return Step(token, raw[token], top)


def _choose(logits: list[float], sampling: Sampling, chance: random.Random) -> int:
    order = sorted(range(SIZE), key=lambda i: -logits[i])
    if sampling.temperature == 0:
        return order[0]
    heated = logprobs([x / sampling.temperature for x in logits])
    kept: list[int] = []
    mass = 0.0
    for token in order:
        enough = mass >= sampling.top_p or (sampling.top_k and len(kept) >= sampling.top_k)
        if kept and (enough or heated[token] < heated[order[0]] + math.log(sampling.min_p or 1e-300)):
            break
        kept.append(token)
        mass += math.exp(heated[token])
    return chance.choices(kept, [math.exp(heated[token]) for token in kept])[0]
