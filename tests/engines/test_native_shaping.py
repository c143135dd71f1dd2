"""What the sampler keeps of a sequence from step to step: it is as if everything were made anew from the ids."""

from __future__ import annotations

import random
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.schedule.sequence import Job, Sequence

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers.generation")

from drivetrain.engines.sample import edits  # noqa: E402
from drivetrain.engines.sample.sampler import _edits  # noqa: E402
from drivetrain.engines.sample.send import send  # noqa: E402

VOCABULARY = 600
MANY = 3 * edits.MOST_LATEST

SHAPED: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.3},
    "presence_penalty": {"presence_penalty": 0.7},
    "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    "logit_bias": {"logit_bias": {i: (i % 7) - 3.5 for i in range(MANY)}},
    "sequence_bias": {
        "logit_bias": dict.fromkeys(range(MANY), 1.5),
        "sequence_bias": tuple(((i, (i * 7) % 40), 2.0) for i in range(40)),
    },
    "bad words": {"bad_words_ids": tuple((i,) for i in range(100, 100 + MANY)) + tuple((i, 39 - i) for i in range(40))},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_range": 40},
    "a few of all": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.3,
        "logit_bias": dict.fromkeys(range(MANY), 1.0),
        "sequence_bias": (((3, 4), 1.0), ((3, 4, 5), 1.0)),
        "suppress_tokens": tuple(range(300, 310)),
        "no_repeat_ngram_size": 3,
        "dry_multiplier": 0.8,
    },
}


def choices(sampling: dict[str, Any], *, n: int = 1, prompt: tuple[int, ...] = tuple(range(50, 250))) -> list[Sequence]:
    request = EngineRequest(
        request_id="x",
        prompt_ids=prompt,
        context_length=4096,
        max_tokens=1000,
        sampling=Sampling(**sampling),
        seeds=tuple(range(n)),
        stop_ids=frozenset({7}),
        min_tokens=3,
    )
    return Job.of(request, 0).sequences


def shaped(logits: Any, rows: list[Sequence]) -> Any:
    changed = logits.clone()
    if (made := _edits(rows)) is not None:
        made.apply(changed)
    return changed


def anew(kept: Sequence) -> Sequence:
    """The same sequence, of which the sampler knows nothing yet."""
    return Sequence(kept.job, kept.index, kept.order, list(kept.ids))


def some_logits(rows: int, seed: int) -> Any:
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def new_ids(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(40 if chance.random() < 0.6 else VOCABULARY) for _ in range(count)]


@pytest.mark.parametrize("name", SHAPED)
def test_ids_that_come_by_one_and_by_several(name: str) -> None:
    chance = random.Random(name)
    (kept,) = choices(SHAPED[name])
    for step in range(200):
        logits = some_logits(1, step)
        assert torch.equal(shaped(logits, [kept]), shaped(logits, [anew(kept)]))
        kept.ids += new_ids(chance, 5 if step % 9 == 8 else 1)


def test_penalties_of_a_long_answer_are_what_its_ids_say() -> None:
    """Not held against ourselves: counted here, and the library's processor."""
    chance = random.Random(0)
    (kept,) = choices({"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.3})
    for step in range(300):
        logits = some_logits(1, step)
        wanted = hf.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([kept.ids]), logits.clone())
        sampled = kept.ids[kept.prompt_length :]
        for token_id in set(sampled):
            wanted[0, token_id] -= 0.5 + 0.25 * sampled.count(token_id)
        if len(sampled) < 3:
            wanted[0, 7] = float("-inf")
        torch.testing.assert_close(shaped(logits, [kept]), wanted, rtol=1e-6, atol=1e-5)
        kept.ids += new_ids(chance, chance.choice((1, 1, 1, 4)))


def test_rows_change_places_and_are_computed_again() -> None:
    """Sequences wait, end, and are tried a second time in other company, as preemption and failed steps have it."""
    chance = random.Random(1)
    all_rows = [one for fields in SHAPED.values() for one in choices(fields, n=2)]
    for step in range(60):
        rows = [one for one in all_rows if chance.random() < 0.6]
        chance.shuffle(rows)
        logits = some_logits(len(rows), step)
        together = shaped(logits, rows)
        for i in chance.sample(range(len(rows)), 3):
            assert torch.equal(shaped(logits[i : i + 1], [rows[i]])[0], together[i])
            assert torch.equal(shaped(logits[i : i + 1], [anew(rows[i])])[0], together[i])
        for one in rows:
            one.ids += new_ids(chance, chance.choice((1, 1, 16)))


def test_choices_of_one_request_keep_their_own() -> None:
    first, second = choices({"repetition_penalty": 2.0, "frequency_penalty": 1.0, "logit_bias": {3: 1.0}}, n=2)
    logits = some_logits(1, 0).repeat(2, 1)
    before = shaped(logits, [first, second])
    first.ids += list(range(MANY))
    after = shaped(logits, [first, second])
    assert torch.equal(after[1, 8:], before[1, 8:])
    assert (after[0, 8:49] < before[0, 8:49]).all()


def test_ids_past_the_logits_are_passed_over() -> None:
    many = dict.fromkeys(range(VOCABULARY - 100, VOCABULARY + 100), 1.0)
    (few,), (lots,) = choices({"logit_bias": {VOCABULARY + 5: 1.0}}), choices({"logit_bias": many})
    logits = some_logits(2, 0)
    change = shaped(logits, [few, lots])[:, 8:] - logits[:, 8:]
    assert not change[0].any()
    assert (change[1, -100:] > 0.9).all()
    assert not change[1, :-100].any()


def test_a_step_sends_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ids have a penalty or a bias."""
    chance = random.Random(2)
    rows = [
        *choices({"logit_bias": dict.fromkeys(range(500), 1.0)}),
        *choices({"suppress_tokens": tuple(range(400))}),
        *choices({"repetition_penalty": 1.2}, prompt=tuple(range(400))),
    ]
    sizes: list[int] = []

    def counted(made: Any, device: Any) -> Any:
        sizes.append(made.numel())
        return send(made, device)

    monkeypatch.setattr("drivetrain.engines.sample.edits.send", counted)
    sent = []
    for step in range(edits.MOST_LATEST):
        sizes.clear()
        shaped(some_logits(len(rows), step), rows)
        sent.append(sum(sizes))
        for one in rows:
            one.ids += new_ids(chance, 1)
    assert sent[0] > 2 * 1300
    assert max(sent[3:]) <= 2 * edits.MOST_LATEST
