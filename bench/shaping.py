"""What biases, penalties, bans and draws cost the sampler of `native` and `transformers`, in ms of CPU a step.

On one thread, with random logits; all cases in turns. The first step is not counted but shown: it makes what is kept.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import torch

from drivetrain.core.engine import EngineRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.schedule.sequence import Job, Sequence
from drivetrain.engines.sample.sampler import Sampled, sample

GIVEN, ANSWERED = 1000, 300
"""Ids of each row's prompt, and of its answer so far."""


def cases(vocabulary: int, chance: random.Random) -> dict[str, dict[str, Any]]:
    bias = {i: chance.uniform(-2, 2) for i in chance.sample(range(vocabulary), 10_000)}
    words = tuple(ids(vocabulary, chance.choice((1, 2, 3)), chance) for _ in range(2000))
    return {
        "greedy": {},
        "temperature": {"temperature": 0.8},
        "top_p": {"temperature": 0.8, "top_p": 0.9},
        "repetition_penalty": {"repetition_penalty": 1.2},
        "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.3},
        "logit_bias of 10,000": {"logit_bias": bias},
        "2,000 bad words": {"bad_words_ids": words},
        "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
        "all of these": {
            "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.5,
            "logit_bias": bias, "bad_words_ids": words, "no_repeat_ngram_size": 3,
        },
    }  # fmt: skip


def ids(vocabulary: int, count: int, chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randrange(vocabulary) for _ in range(count))


def sequence(sampling: dict[str, Any], vocabulary: int, seed: int) -> Sequence:
    chance = random.Random(seed)
    request = EngineRequest(
        request_id="x",
        prompt_ids=ids(vocabulary, GIVEN, chance),
        context_length=100_000,
        max_tokens=10_000,
        sampling=Sampling(**{"temperature": 0.0, **sampling}),
        seeds=(seed,),
    )
    made = Job.of(request, 0).sequences[0]
    made.ids += ids(vocabulary, ANSWERED, chance)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--vocabulary", type=int, default=49152)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {
        name: [sequence(fields, args.vocabulary, seed) for seed in range(args.rows)]
        for name, fields in cases(args.vocabulary, random.Random(0)).items()
    }
    spent: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(args.steps):
        logits = 3 * torch.randn(args.rows, args.vocabulary)
        for name, some in rows.items():
            copy = logits.clone()
            begun = time.thread_time()
            outcomes = sample(copy, some)
            spent[name].append(1000 * (time.thread_time() - begun))
            for one, outcome in zip(some, outcomes, strict=True):
                assert isinstance(outcome, Sampled)
                one.ids.append(outcome.token_id)
    medians = {name: statistics.median(some[1:]) for name, some in spent.items()}
    print(f"{'':24} median  above greedy  first step")
    for name, median in medians.items():
        print(f"{name:24} {median:6.2f} {median - medians['greedy']:13.2f} {spent[name][0]:11.1f}")


if __name__ == "__main__":
    main()
