"""Before the first request: are the model's logits in our packed rows the same as by itself?

Several random texts go through the scheduler, the cache and our attention together, in chunks and then id by id; the
logits of every position that is sampled are held against one plain pass of the model's own attention.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import LoadFailed
from drivetrain.engines.native.attention.layers import NAME
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.kv.rows import KvRows, capacities
from drivetrain.engines.native.model.loading import NativeModel
from drivetrain.engines.native.model.probe import translated
from drivetrain.engines.native.model.runner import Forward, Runner
from drivetrain.engines.native.model.supported import unfit
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job, Sequence

LENGTHS = (3, 11, 24)
DECODED = 4
LONGEST_WINDOW = 256
"""The check runs past a sliding window only up to this length: it must not take minutes."""

TOLERANCE = 1e-3
"""Relative to the largest logit, in float32; other dtypes get what their rounding needs."""


def check(loaded: NativeModel, forward: Forward) -> None:
    """Raise `UnfitEngine` if the packed logits are not the model's own."""
    sequences = _texts(loaded)
    with torch.inference_mode(), translated():
        packed = _packed(loaded, sequences, forward)
        plain = _plain(loaded.model, [sequence.ids for sequence in sequences])
    for sequence, ours, theirs in zip(sequences, packed, plain, strict=True):
        wanted = theirs[sequence.prompt_length - 1 : -1].float()
        if wanted.isnan().any():
            raise LoadFailed("the model's own logits are not numbers: its weights are damaged, or need a wider dtype")
        scale = wanted.abs().max().item() or 1.0
        worst = (ours - wanted).abs().max().item() / scale
        if not worst <= _tolerance(loaded.model.dtype):
            raise unfit(f"in a batch its logits are off by {worst:.1%} of what they are alone")


def _texts(loaded: NativeModel) -> list[Sequence]:
    rng = random.Random(0)  # noqa: S311 - not for secrets
    vocabulary = int(loaded.model.get_input_embeddings().num_embeddings)
    lengths = [n for n in LENGTHS if n + DECODED <= loaded.context_length]
    window = getattr(loaded.model.config.get_text_config(), "sliding_window", None)
    if isinstance(window, int) and 0 < window <= LONGEST_WINDOW and window + 8 + DECODED <= loaded.context_length:
        lengths.append(window + 8)
    return [
        Job.of(
            EngineRequest(
                request_id="self-test",
                prompt_ids=tuple(rng.randrange(vocabulary) for _ in range(length)),
                context_length=loaded.context_length,
                max_tokens=DECODED,
                seeds=(0,),
            ),
            number,
        ).sequences[0]
        for number, length in enumerate(lengths or [1])
    ]


def _packed(loaded: NativeModel, sequences: list[Sequence], forward: Forward) -> list[Any]:
    """The logits after each prompt and each decoded id, of every sequence."""
    model = loaded.model
    cache = KvCache(loaded.layers, dtype=model.dtype, device=model.device)
    longest = max(len(sequence.ids) for sequence in sequences) + DECODED
    sizes = capacities(longest, 8)
    rows = KvRows(sizes, token_bytes=cache.token_bytes, budget_bytes=1000 * longest * cache.token_bytes)
    scheduler = Scheduler(rows, None, max_batch=len(sequences), budget=TokenBudget(alone=40, beside=7), headroom=1)
    runner = Runner(model, loaded.stage, cache, forward)
    computed_logits: dict[Sequence, list[Any]] = {sequence: [] for sequence in sequences}
    for sequence in sequences:
        scheduler.add(sequence.job)
    while not scheduler.idle:
        planned = scheduler.schedule()
        cache.apply(rows.drain())
        works, logits = runner.forward(planned)
        scheduler.computed(works)
        for work, row in zip([work for work in works if work.samples], logits.float(), strict=True):
            computed_logits[work.sequence].append(row)
            work.sequence.ids.append(int(row.argmax()))
            if work.sequence.num_sampled == DECODED:
                scheduler.end(work.sequence)
    return [torch.stack(logits) for logits in computed_logits.values()]


def _plain(model: Any, texts: list[list[int]]) -> list[Any]:
    """The logits of the model's own eager attention, text by text."""
    model.set_attn_implementation("eager")
    try:
        return [
            model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].float()
            for ids in texts
        ]
    finally:
        model.set_attn_implementation(NAME)


def _tolerance(dtype: Any) -> float:
    return TOLERANCE if dtype == torch.float32 else 32 * float(torch.finfo(dtype).eps)
