"""DRY and XTC against what their definitions say, written down as plainly as they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence as Ids
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drivetrain.core.engine import EngineRequest
from drivetrain.core.sampling import DRY_BREAKERS, Sampling
from drivetrain.engines.native.schedule.sequence import Job, Sequence

torch = pytest.importorskip("torch")

from drivetrain.engines.sample import cutoffs  # noqa: E402 - these need torch
from drivetrain.engines.sample.dry import DryPenalty  # noqa: E402
from drivetrain.engines.sample.rng import EXCLUSION, unit  # noqa: E402
from drivetrain.engines.sample.sampler import Sampled, sample  # noqa: E402

SPELLED = (b"a", b"b", b"ab", b"\n", b".\n", b"", b":", b"<br", b">", "é".encode()[:1], "é".encode()[1:])
BREAKERS = ("\n", ":", "<br>", "ba", "aa", "é")


def spell(token_id: int) -> bytes:
    return SPELLED[token_id] if token_id < len(SPELLED) else b""


def dry_by_definition(ids: Ids[int], s: Sampling) -> dict[int, float]:
    recent = list(ids[-s.dry_range :]) if s.dry_range else list(ids)
    breakers = [text.encode() for text in s.dry_sequence_breakers]
    longest: dict[int, int] = {}
    for end in range(1, len(recent)):
        matching = [n for n in range(1, end + 1) if recent[end - n : end] == recent[-n:]]
        length = min(max(matching, default=0), ids_after_a_break(ids, breakers))
        if length >= s.dry_allowed_length:
            longest[recent[end]] = max(length, longest.get(recent[end], 0))
    return {
        token_id: s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length)
        for token_id, length in longest.items()
        if not any(breaker in spell(token_id) for breaker in breakers)
    }


def ids_after_a_break(ids: Ids[int], breakers: Ids[bytes]) -> int:
    for count in range(len(ids)):
        text = b"".join(map(spell, ids[: len(ids) - count]))
        newest = spell(ids[len(ids) - count - 1])
        ends = range(len(text) - len(newest) + 1, len(text) + 1)
        if any(text[:end].endswith(breaker) for end in ends for breaker in breakers):
            return count
    return len(ids)


SAMPLINGS = st.builds(
    Sampling,
    dry_multiplier=st.sampled_from((0.8, 3.0)),
    dry_base=st.sampled_from((1.0, 1.75, 4.0)),
    dry_allowed_length=st.integers(1, 4),
    dry_range=st.sampled_from((0, 1, 2, 3, 5, 8, 100)),
    dry_sequence_breakers=st.lists(st.sampled_from(BREAKERS), unique=True, max_size=3).map(tuple),
)
FEW = st.lists(st.integers(0, 2), max_size=25)
ANY = st.lists(st.integers(0, len(SPELLED)), max_size=25)


@given(SAMPLINGS, FEW | ANY, FEW | ANY)
def test_dry_is_what_its_definition_says(s: Sampling, prompt: list[int], sampled: list[int]) -> None:
    """After the prompt, and after each further id; and the same where several come at once."""
    dry = DryPenalty(s, spell)
    for end in range(len(prompt), len(prompt) + len(sampled) + 1):
        ids = [*prompt, *sampled][:end]
        dry.read(ids)
        assert dry.penalties() == pytest.approx(dry_by_definition(ids, s)), ids
    late = DryPenalty(s, spell)
    late.read([*prompt, *sampled])
    assert late.penalties() == dry.penalties()


def test_dry_of_a_known_text() -> None:
    """The example in llama.cpp's source: what came after `a b c`, after `b c` and after `c`."""
    a, b, c, y = 20, 21, 22, 23
    ids = [a, b, c, c, b, c, y, a, b, c]
    dry = DryPenalty(Sampling(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1), spell)
    dry.read(ids)
    assert dry.penalties() == pytest.approx({c: 4.0, b: 1.0, y: 2.0})


@pytest.mark.parametrize("multiplier", [1e-300, 0.8, 100.0])
def test_dry_bans_nothing(multiplier: float) -> None:
    """However long the repetition: a grammar may leave nothing else."""
    dry = DryPenalty(Sampling(dry_multiplier=multiplier, dry_base=10.0, dry_sequence_breakers=()), spell)
    dry.read([1] * 5000)
    assert dry.penalties() == pytest.approx({1: 1e30})
    assert bool(torch.isfinite(torch.tensor(-dry.penalties()[1], dtype=torch.float32)))


def sequence(sampling: Sampling, ids: list[int], seed: int = 0, **fields: Any) -> Sequence:
    request = EngineRequest(
        request_id="x", prompt_ids=tuple(ids), context_length=4096, max_tokens=9, sampling=sampling, seeds=(seed,),
        token_bytes=spell, **fields,
    )  # fmt: skip
    return Job.of(request, 0).sequences[0]


def test_dry_is_subtracted_from_the_logits_and_not_from_the_logprobs() -> None:
    logits = torch.zeros(2, 30)
    logits[:, 2] = 3.0
    ids = [0, 1, 2, 0, 1]
    off, on = Sampling(temperature=0.0), Sampling(temperature=0.0, dry_multiplier=10.0)
    free, penalised = sample(logits.clone(), [sequence(each, ids, logprobs=1) for each in (off, on)])
    assert isinstance(free, Sampled)
    assert isinstance(penalised, Sampled)
    assert (free.token_id, penalised.token_id) == (2, 0)
    raw = torch.log_softmax(logits[0], dim=-1)
    assert penalised.logprobs is not None
    assert penalised.logprobs.logprob == pytest.approx(float(raw[0]))
    ((likeliest, logprob),) = penalised.logprobs.top
    assert likeliest == 2
    assert logprob == pytest.approx(float(raw[2]))


# XTC


def xtc_by_definition(logits: list[float], threshold: float) -> set[int]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    shares = {i: weight / sum(weights) for i, weight in enumerate(weights) if weight}
    assume(all(abs(share - threshold) > 1e-5 for share in shares.values()))
    likely = [i for i, share in shares.items() if share >= threshold]
    return set(shares) - set(sorted(likely, key=lambda i: logits[i])[1:])


def left(monkeypatch: pytest.MonkeyPatch, draw: Any) -> list[set[int]]:
    """What each row may draw: the indices with weight."""
    weights: list[Any] = []

    def note(row_weights: Any, units: Any) -> Any:
        weights.append(row_weights)
        return torch.zeros(row_weights.shape[0], dtype=torch.long)

    with monkeypatch.context() as patch:
        patch.setattr(cutoffs, "_invert", note)
        draw()
    return [set(row.nonzero()[:, 0].tolist()) for row in weights[0]]


DISTINCT = st.lists(st.integers(-40, 40), min_size=1, max_size=12, unique=True).map(lambda x: [i / 8 for i in x])
BANNED = float("-inf")


@given(DISTINCT, st.sampled_from((0.0, 1e-4, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 1.0)))
def test_xtc_leaves_the_least_likely_of_the_likely(logits: list[float], threshold: float) -> None:
    """Of all ids, and of what other cut-offs have left; a row in which it excludes nothing stays as it is."""
    wanted = xtc_by_definition(logits, threshold)
    patch = pytest.MonkeyPatch()
    row = torch.tensor([[*logits, BANNED]] * 2)
    thresholds = torch.tensor([[threshold], [2.0]])
    everything = set(range(len(logits)))
    assert left(patch, lambda: cutoffs.draw(row, None, thresholds)) == [wanted, everything]
    for count, top_k in ((len(logits) + 1, len(logits)), (len(logits), len(logits))):
        cut = [Sampling(top_k=top_k)] * 2
        order = row[0].topk(count).indices.tolist()
        found = left(patch, lambda: cutoffs._draw_among(row, None, cut, count, thresholds))  # noqa: B023 - at once
        assert [{order[i] for i in kept} for kept in found] == [wanted, everything]


def test_xtc_counts_what_the_other_cut_offs_leave() -> None:
    """Of two ids, both are likely; of all, only one is."""
    row = torch.tensor([[2.0, 1.9, *[1.0] * 50]])
    cut, thresholds = [Sampling(top_k=2)], torch.tensor([[0.3]])
    patch = pytest.MonkeyPatch()
    assert left(patch, lambda: cutoffs._draw_among(row, None, cut, 52, thresholds)) == [{1}]
    assert left(patch, lambda: cutoffs.draw(row, None, thresholds)) == [set(range(52))]


def test_xtc_keeps_something_that_can_be_drawn() -> None:
    """What has no weight as a float32 is not the least likely."""
    row, thresholds = torch.tensor([[0.0, -1.0, -300.0, BANNED]]), torch.zeros(1, 1)
    patch, cut = pytest.MonkeyPatch(), [Sampling(top_k=4)]
    assert left(patch, lambda: cutoffs.draw(row, None, thresholds)) == [{1}]
    assert left(patch, lambda: cutoffs._draw_among(row, None, cut, 4, thresholds)) == [{1}]


def test_xtc_takes_equals_of_the_least_likely_along() -> None:
    row = torch.tensor([[2.0, 1.0, 1.0, -9.0]])
    assert left(pytest.MonkeyPatch(), lambda: cutoffs.draw(row, None, torch.tensor([[0.1]]))) == [{1, 2, 3}]


def test_xtc_acts_as_often_as_it_should_and_draws_as_the_others_do() -> None:
    row = torch.tensor([3.0, 2.0, -3.0])
    for cut in ({}, {"top_k": 3}):
        sampling = Sampling(xtc_probability=0.25, xtc_threshold=0.1, **cut)  # type: ignore[arg-type]
        sequences = [sequence(sampling, [0], seed) for seed in range(4000)]
        plain = [sequence(Sampling(**cut), [0], seed) for seed in range(4000)]  # type: ignore[arg-type]
        ids = [one.token_id for one in sample(row.repeat(4000, 1), sequences) if isinstance(one, Sampled)]
        free = [one.token_id for one in sample(row.repeat(4000, 1), plain) if isinstance(one, Sampled)]
        excluding = [unit(seed, 0, EXCLUSION) < 0.25 for seed in range(4000)]
        assert abs(sum(excluding) / 4000 - 0.25) < 0.03
        for acts, token_id, without in zip(excluding, ids, free, strict=True):
            assert token_id != 0 if acts else token_id == without


def test_xtc_of_one_row_changes_no_other() -> None:
    logits = 3 * torch.randn(64, 3000, generator=torch.Generator().manual_seed(0))
    others = [Sampling(), Sampling(top_p=0.9), Sampling(temperature=0.0), Sampling(min_p=0.02)]
    xtc = [Sampling(xtc_probability=1.0), Sampling(xtc_probability=1.0, xtc_threshold=1e-4, top_p=0.999)]
    alone = sample(logits.clone(), [sequence(others[i % 4], [1], i) for i in range(64)])
    rows = [sequence(xtc[i // 2 % 2] if i % 2 else others[i % 4], [1], i) for i in range(64)]
    assert sample(logits.clone(), rows)[::2] == alone[::2]
    each = [sample(logits[i : i + 1].clone(), [sequence(rows[i].request.sampling, [1], i)])[0] for i in range(64)]
    assert sample(logits.clone(), rows) == each


def test_the_numbers_of_the_draws_are_those_of_before() -> None:
    """A receipt's seed must mean the same for ever."""
    assert unit(7, 3) == 0.7518468992644429
    assert unit(7, 3, EXCLUSION) != unit(7, 3)


def test_the_breakers_are_the_fields() -> None:
    assert Sampling().dry_sequence_breakers == DRY_BREAKERS == ("\n", ":", '"', "*")
