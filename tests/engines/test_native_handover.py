"""The host waits for the device once a step: for the ids. What it cannot know before then is drawn again after."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from drivetrain.core.engine import EngineRequest
from drivetrain.core.sampling import Sampling
from drivetrain.engines.native.schedule.sequence import Job, Sequence

torch = pytest.importorskip("torch")

from drivetrain.engines.sample.cutoffs import CANDIDATES, TOO_FEW  # noqa: E402
from drivetrain.engines.sample.masks import Masks  # noqa: E402
from drivetrain.engines.sample.sampler import Sampled, Unsampled, _choose, sample  # noqa: E402

VOCABULARY = 3 * CANDIDATES

CASES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"typical_p": 0.8, "top_h": 0.9, "epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4},
    {"repetition_penalty": 1.3, "encoder_repetition_penalty": 1.1},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"logit_bias": dict.fromkeys(range(500), 1.0), "sequence_bias": (((1, 2), 1.0),)},
    {"bad_words_ids": ((1, 2), (3,)), "suppress_tokens": (4,), "begin_suppress_tokens": (5,)},
    {"no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 2},
    {"exponential_decay_length_penalty": (0, 1.5)},
]


def row(sampling: dict[str, Any], **fields: Any) -> Sequence:
    request = EngineRequest(
        request_id="x",
        prompt_ids=tuple(range(200)),
        context_length=4096,
        max_tokens=100,
        sampling=Sampling(**sampling),
        stop_ids=frozenset({7}),
        **{"seeds": (1,), **fields},
    )
    made = Job.of(request, 0).sequences[0]
    made.ids += [1, 2, 1]
    return made


class Anything:
    """A grammar that allows all, and its own matcher."""

    ends: frozenset[int] = frozenset()
    vocab_size = VOCABULARY
    may_end = True
    fault = ""

    def matcher(self) -> Anything:
        return self

    def take(self, ids: Any) -> bool:
        return True

    def write_mask(self, address: int, size: int) -> None:
        ctypes.memset(address, 255, size)


@pytest.mark.parametrize("together", [True, False])
def test_choosing_reads_nothing_of_the_device(together: bool) -> None:
    """On a device that has no values at all: whoever asks it for one fails."""
    rows = [row(fields) for fields in CASES] + [row({}, grammar=Anything())]
    for some in [rows] if together else [[one] for one in rows]:
        with Masks(some) as masks:
            chosen, _ = _choose(torch.empty(len(some), VOCABULARY, device="meta"), some, masks)
        assert chosen.device.type == "meta"
        assert chosen.shape == (len(some),)


def test_a_cut_off_beyond_the_candidates_is_drawn_again_from_all() -> None:
    flat = 0.01 * torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    flat[1, 5] = 30.0
    wide, narrow = {"top_p": 0.99}, {"top_k": 5}
    chosen, _ = _choose(flat.clone(), [row(wide), row(wide), row(narrow)], Masks([]))
    assert chosen.tolist()[:2] == [TOO_FEW, 5]
    assert chosen[2] >= 0
    seen = set()
    for seed in range(200):
        rows = [row(wide, seeds=(seed,)), row(wide), row(narrow)]
        first, second, third = sample(flat.clone(), rows)
        assert isinstance(first, Sampled)
        assert second == Sampled(5)
        assert third == Sampled(int(chosen[2]))
        assert sample(flat[:1].clone(), rows[:1]) == [first]
        seen.add(first.token_id)
    likeliest = set(flat[0].topk(CANDIDATES).indices.tolist())
    assert len(seen - likeliest) > len(seen) // 2


@pytest.mark.parametrize("fields", CASES)
def test_a_row_that_fails_is_not_drawn_again(fields: dict[str, Any]) -> None:
    """With logprobs, which are looked up by the chosen ids."""
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    alone = sample(logits[:1].clone(), [row(fields, logprobs=1)])
    logits[1], logits[2] = torch.nan, -torch.inf
    good, broken, empty = sample(logits, [row(fields, logprobs=1) for _ in range(3)])
    assert [good] == alone
    assert isinstance(good, Sampled)
    assert good.logprobs is not None
    assert isinstance(broken, Unsampled)
    assert broken.poisoned
    assert isinstance(empty, Unsampled)
    assert not empty.poisoned
