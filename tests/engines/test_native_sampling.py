"""Each sampling parameter of the native engine against the library's own processors; draws that keep to themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from contract.native_rig import NativeRig
from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import EngineFailed, InvalidRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.schedule.sequence import Job, Sequence
from drivetrain.engines.sample.rng import unit
from drivetrain.worker.worker import EngineWorker

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers.generation")

VOCABULARY = 3000
EOS = 7


def sequence(sampling: Sampling, prompt: list[int], sampled: list[int], **fields: Any) -> Sequence:
    request = EngineRequest(
        request_id="x",
        prompt_ids=tuple(prompt),
        context_length=4096,
        max_tokens=100,
        sampling=sampling,
        **{"seeds": (3,), "stop_ids": frozenset({EOS}), **fields},
    )
    made = Job.of(request, 0).sequences[0]
    made.ids += sampled
    return made


def random_logits(rows: int, *, seed: int = 0, spread: float = 3.0) -> Any:
    return spread * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


PROMPT = [5, 6, 5, 9, 11, 5, 6]
SAMPLED = [9, 9, 12, 5, 6, 9, 11, 5]

SHAPED: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "logit_bias": (
        {"logit_bias": {3: 5.0, 9: -4.0}},
        lambda n: hf.SequenceBiasLogitsProcessor([[[3], 5.0], [[9], -4.0]]),
    ),
    "sequence_bias": (
        {"sequence_bias": (((11, 5, 8), 3.0), ((9, 4), 2.0), ((6,), -1.0))},
        lambda n: hf.SequenceBiasLogitsProcessor([[[11, 5, 8], 3.0], [[9, 4], 2.0], [[6], -1.0]]),
    ),
    "repetition_penalty": ({"repetition_penalty": 1.7}, lambda n: hf.RepetitionPenaltyLogitsProcessor(1.7)),
    "encoder_repetition_penalty": (
        {"encoder_repetition_penalty": 1.7},
        lambda n: hf.EncoderRepetitionPenaltyLogitsProcessor(1.7, torch.tensor([PROMPT])),
    ),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, lambda n: hf.NoRepeatNGramLogitsProcessor(2)),
    "no_repeat_ngram_size_1": ({"no_repeat_ngram_size": 1}, lambda n: hf.NoRepeatNGramLogitsProcessor(1)),
    "encoder_no_repeat_ngram_size": (
        {"encoder_no_repeat_ngram_size": 2},
        lambda n: hf.EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([PROMPT])),
    ),
    "bad_words_ids": (
        {"bad_words_ids": ((11, 5, 8), (4,), (9, 4))},
        lambda n: hf.NoBadWordsLogitsProcessor([[11, 5, 8], [4], [9, 4]]),
    ),
    "exponential_decay_length_penalty": (
        {"exponential_decay_length_penalty": (3, 1.3)},
        lambda n: hf.ExponentialDecayLengthPenalty((3, 1.3), torch.tensor([EOS]), len(PROMPT)),
    ),
    "suppress_tokens": ({"suppress_tokens": (1, 2, 9)}, lambda n: hf.SuppressTokensLogitsProcessor((1, 2, 9))),
    "begin_suppress_tokens": (
        {"begin_suppress_tokens": (1, 2)},
        lambda n: hf.SuppressTokensAtBeginLogitsProcessor((1, 2), len(PROMPT)),
    ),
}


def edited(logits: Any, sequences: list[Sequence]) -> Any:
    from drivetrain.engines.sample.sampler import _edits

    edits = _edits(sequences)
    changed = logits.clone()
    if edits is not None:
        edits.apply(changed)
    return changed


@pytest.mark.parametrize("name", SHAPED)
def test_shaping_is_the_librarys(name: str) -> None:
    """In one batch: the same row at every length of its answer, and neighbours that ask for nothing."""
    fields, make = SHAPED[name]
    sequences = []
    for n in range(len(SAMPLED) + 1):
        sequences += [sequence(Sampling(**fields), PROMPT, SAMPLED[:n]), sequence(Sampling(), PROMPT, SAMPLED[:n])]
    logits = random_logits(len(sequences))
    found = edited(logits, sequences)
    for row, one in enumerate(sequences):
        wanted = logits[row : row + 1].clone()
        if row % 2 == 0:
            wanted = make(row)(torch.tensor([one.ids]), wanted)
        torch.testing.assert_close(found[row], wanted[0], rtol=1e-5, atol=1e-5)


def test_presence_and_frequency_count_what_was_sampled() -> None:
    one = sequence(Sampling(presence_penalty=0.5, frequency_penalty=0.25), PROMPT, [9, 9, 12])
    logits = random_logits(1)
    change = edited(logits, [one]) - logits
    wanted = torch.zeros(VOCABULARY)
    wanted[9], wanted[12] = -1.0, -0.75
    torch.testing.assert_close(change[0], wanted, atol=1e-5, rtol=0)


def test_all_shaping_together_is_in_the_librarys_order() -> None:
    fields: dict[str, Any] = {}
    processors = []
    for name in SHAPED:
        if name not in {"logit_bias", "no_repeat_ngram_size_1"}:
            fields |= SHAPED[name][0]
            processors.append(SHAPED[name][1](0))
    one = sequence(Sampling(**fields), PROMPT, SAMPLED)
    logits = random_logits(1)
    wanted = logits.clone()
    for processor in processors:
        wanted = processor(torch.tensor([one.ids]), wanted)
    torch.testing.assert_close(edited(logits, [one]), wanted, rtol=1e-5, atol=1e-5)


def test_no_stop_before_min_tokens() -> None:
    few = sequence(Sampling(), PROMPT, SAMPLED[:2], min_tokens=3)
    enough = sequence(Sampling(), PROMPT, SAMPLED[:3], min_tokens=3)
    found = edited(random_logits(2), [few, enough])
    assert torch.isneginf(found[0, EOS])
    assert torch.isfinite(found[1, EOS])


def test_a_shape_may_come_late_and_sees_all() -> None:
    """A sequence that was preempted, or whose ids came several at once."""
    early = sequence(Sampling(repetition_penalty=2.0, no_repeat_ngram_size=2), PROMPT, [])
    logits = random_logits(1)
    for token_id in SAMPLED:
        edited(logits, [early])
        early.ids.append(token_id)
    late = sequence(Sampling(repetition_penalty=2.0, no_repeat_ngram_size=2), PROMPT, SAMPLED)
    torch.testing.assert_close(edited(logits, [early]), edited(logits, [late]))


WARPERS: dict[str, Callable[[Any], Any]] = {
    "top_h": lambda v: hf.TopHLogitsWarper(top_h=v),
    "top_k": lambda v: hf.TopKLogitsWarper(top_k=v),
    "top_p": lambda v: hf.TopPLogitsWarper(top_p=v),
    "min_p": lambda v: hf.MinPLogitsWarper(min_p=v),
    "typical_p": lambda v: hf.TypicalLogitsWarper(mass=v),
    "epsilon_cutoff": lambda v: hf.EpsilonLogitsWarper(epsilon=v),
    "eta_cutoff": lambda v: hf.EtaLogitsWarper(epsilon=v),
}
"""In the library's order."""

CUTS: list[dict[str, Any]] = [
    {"top_k": 1}, {"top_k": 40}, {"top_k": 2000}, {"top_k": VOCABULARY + 5},
    {"top_p": 0.1}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_p": 1e-6},
    {"min_p": 0.05}, {"min_p": 1e-5}, {"min_p": 1.0},
    {"typical_p": 0.2}, {"typical_p": 0.95}, {"top_h": 0.3}, {"top_h": 0.9},
    {"epsilon_cutoff": 0.003}, {"epsilon_cutoff": 1e-6}, {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.02}, {"eta_cutoff": 1e-5},
    {"top_k": 50, "top_p": 0.8}, {"top_k": 50, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.7},
    {"top_p": 0.9, "typical_p": 0.5}, {"top_p": 0.99, "epsilon_cutoff": 0.001, "eta_cutoff": 0.01},
    {"min_p": 0.02, "eta_cutoff": 0.02}, {"top_k": 1500, "epsilon_cutoff": 0.0005}, {"top_h": 0.8, "top_p": 0.7},
]  # fmt: skip


def left_by_us(logits: Any, samplings: list[Sampling]) -> list[set[int]]:
    """What a row may draw: asked by random numbers that are spread evenly over all its weight."""
    from drivetrain.engines.sample import cutoffs

    found: list[set[int]] = [set() for _ in samplings]
    weights = []

    def note(row_weights: Any, units: Any) -> Any:
        weights.append(row_weights)
        return torch.zeros(row_weights.shape[0], dtype=torch.long)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutoffs, "_invert", note)
        count = min(cutoffs.CANDIDATES, logits.shape[1])
        rows = list(range(len(samplings)))
        _, enough = cutoffs._draw_among(logits, None, samplings, count)
        for row in rows:
            part, mine = (logits, row) if enough[row] else (logits[row : row + 1], 0)
            some = samplings if enough[row] else [samplings[row]]
            weights.clear()
            wide = count if enough[row] else logits.shape[1]
            cutoffs._draw_among(part, None, some, wide)
            ids = part[mine].topk(wide).indices
            found[row] = {int(i) for i in ids[weights[-1][mine] > 0].tolist()}
    return found


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
def test_the_cut_offs_are_the_librarys(spread: float) -> None:
    """All rows in one batch, each with its own. A few ids at the very edge may differ by rounding."""
    samplings = [Sampling(**cut) for cut in CUTS]
    logits = random_logits(len(CUTS), spread=spread)
    for cut, row, found in zip(CUTS, logits, left_by_us(logits, samplings), strict=True):
        scores = row[None].clone()
        for name, make in WARPERS.items():
            if name in cut:
                scores = make(cut[name])(None, scores)
        wanted = set(torch.isfinite(scores[0]).nonzero()[:, 0].tolist())
        wanted -= {i for i in wanted if torch.exp(row[i] - row.max()) == 0}  # too unlikely for any draw
        edge = found ^ wanted
        assert len(edge) <= max(1, len(wanted) // 200), (cut, len(found), len(wanted))


def test_banned_ids_are_never_drawn() -> None:
    from drivetrain.engines.sample.sampler import Sampled, sample

    logits = random_logits(2)
    logits[:, 100:] = float("-inf")
    for position in range(50):
        ids = [1] * position
        sequences = [sequence(Sampling(), [1], ids), sequence(Sampling(top_p=0.9999, top_k=900), [1], ids)]
        for outcome in sample(logits.clone(), sequences):
            assert isinstance(outcome, Sampled)
            assert outcome.token_id < 100


@pytest.mark.parametrize("cut", [{}, {"top_k": 4}, {"top_p": 0.95}, {"min_p": 0.01}])
def test_draws_follow_the_distribution(cut: dict[str, Any]) -> None:
    from drivetrain.engines.sample.sampler import Sampled, sample

    row = torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0])
    temperature = 0.8
    scores = (row / temperature)[None]
    for name, value in cut.items():
        scores = WARPERS[name](value)(None, scores)
    wanted = torch.softmax(scores[0], dim=-1)
    draws = 4000
    sequences = [sequence(Sampling(temperature=temperature, **cut), [0], [], seeds=(seed,)) for seed in range(draws)]
    counts = torch.zeros(5)
    for outcome in sample(row.repeat(draws, 1), sequences):
        assert isinstance(outcome, Sampled)
        counts[outcome.token_id] += 1
    assert (counts / draws - wanted).abs().max() < 0.03
    assert counts[wanted == 0].sum() == 0


def test_random_numbers_are_even_and_of_seed_and_position_only() -> None:
    numbers = [unit(seed, position) for seed in range(-50, 50) for position in range(50)]
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02
    assert unit(-(2**63), 3) == unit(-(2**63), 3) != unit(2**63 - 1, 3)


def test_a_row_without_numbers_or_without_choice_fails_alone() -> None:
    from drivetrain.engines.sample.sampler import Sampled, Unsampled, sample

    logits = random_logits(3)
    logits[0, 5] = float("nan")
    barred = sequence(Sampling(suppress_tokens=tuple(range(VOCABULARY))), PROMPT, [])
    sequences = [sequence(Sampling(), PROMPT, []), barred, sequence(Sampling(top_p=0.5), PROMPT, [])]
    broken, banned, well = sample(logits, sequences)
    assert isinstance(broken, Unsampled)
    assert isinstance(broken.error, EngineFailed)
    assert broken.poisoned
    assert isinstance(banned, Unsampled)
    assert isinstance(banned.error, InvalidRequest)
    assert banned.error.param == "suppress_tokens"
    assert isinstance(well, Sampled)


@pytest.fixture(scope="module")
async def worker(checkpoint: Callable[[str], Path]) -> AsyncIterator[EngineWorker]:
    async with NativeRig(checkpoint).open() as made:
        yield made


MIXED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_p": 0.9, "seed": 2},
    {"temperature": 1.3, "top_k": 20, "seed": 3, "logprobs": 3},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3, "seed": 4},
    {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"temperature": 0, "no_repeat_ngram_size": 2, "logprobs": 1},
    {"temperature": 1.0, "typical_p": 0.8, "seed": 6},
    {"temperature": 1.0, "eta_cutoff": 0.01, "seed": 7, "min_tokens": 10},
    {"temperature": 0.9, "logit_bias": {65: 3.0, 66: -100.0}, "seed": 8},
    {"temperature": 1.0, "n": 3, "seed": 9},
    {"temperature": 1.0, "bad_words_ids": [[70, 71]], "suppress_tokens": [80], "seed": 10},
    {"temperature": 1.0, "dry_multiplier": 0.8, "dry_allowed_length": 1, "seed": 11},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.01, "seed": 12},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.01, "min_p": 0.05, "seed": 13},
]


async def test_an_answer_does_not_depend_on_its_neighbours(worker: EngineWorker) -> None:
    def ids(result: Any) -> list[tuple[int, ...]]:
        return [choice.token_ids for choice in result.choices]

    requests = [
        {"prompt": f"Tell me about the number {i}.", "max_tokens": 24, **fields} for i, fields in enumerate(MIXED)
    ]
    alone = [ids(await worker.generate(**request)) for request in requests]
    for shuffled in range(2):
        order = list(range(len(requests)))
        random.Random(shuffled).shuffle(order)
        together = await asyncio.gather(*(worker.generate(**requests[i]) for i in order))
        assert [ids(result) for result in together] == [alone[i] for i in order]
