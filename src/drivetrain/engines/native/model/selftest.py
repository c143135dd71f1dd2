"""Before the first request: are the model's logits in our packed rows the same as by itself, and can an id be drawn?

Several random texts go through the scheduler, the cache and our attention together, in chunks and then id by id; the
logits of every position that is sampled are held against those of the model's own attention, text by text.

That is done in float32, whatever the model's dtype: a wrong scale or position is far outside its rounding, but often
within that of bfloat16. A model of half precision then goes through as it will be served. There the measure is how far
its own class is from float32.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from drivetrain.core.engine import EngineRequest
from drivetrain.core.errors import LoadFailed
from drivetrain.core.sampling import Sampling
from drivetrain.engines.base.error_text import one_line
from drivetrain.engines.checkpoint import errors
from drivetrain.engines.native.attention.layers import NAME
from drivetrain.engines.native.attention.reference import ReferenceAttention
from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS, BlockPool
from drivetrain.engines.native.kv.cache import KvCache
from drivetrain.engines.native.model.loading import NativeModel
from drivetrain.engines.native.model.probe import translated
from drivetrain.engines.native.model.runner import Pass, Runner, plain_pass
from drivetrain.engines.native.model.supported import unfit
from drivetrain.engines.native.model.widening import HALVES, in_float32
from drivetrain.engines.native.schedule.budget import TokenBudget
from drivetrain.engines.native.schedule.scheduler import Scheduler
from drivetrain.engines.native.schedule.sequence import Job, Sequence
from drivetrain.engines.sample.rng import unit
from drivetrain.engines.sample.sampler import Sampled, sample

LENGTHS = (3, 11, 24)
DECODED = 4
LONGEST_WINDOW = 256
"""The check runs past a sliding window only up to this length: it must not take minutes."""

TOLERANCE = 1e-3
"""Relative to the largest logit, in float32."""

FURTHER = 4
"""How many times as far from float32 as the class itself a batch of half precision may be. Both only round: measured
with many sets of texts, it is 0.2 to 1.6 times on random weights, and up to 2.3 on SmolLM2-135M, where some positions
round far more than others. A wrong mask, cache or head makes it 6 to 1,000."""

DRAWN = 1e-3
"""How far a draw may be from its random number."""

Text = list[int]
Logits = list[Any]
"""Of each text, those of its last `DECODED` sampled positions: `[DECODED, vocabulary]`."""


def check(loaded: NativeModel, computing: Pass) -> None:
    """Raise `UnfitEngine` if the packed logits are not the model's own, `LoadFailed` if the model cannot say any id."""
    model = loaded.model
    texts = _texts(loaded)
    half = model.dtype in HALVES
    with torch.inference_mode(), translated():
        with in_float32(model):
            exact = _alone(model, texts)
            ours = _packed(loaded, texts, Pass(plain_pass(model), ReferenceAttention) if half else computing)
        _hold_exactly(ours, exact)
        if half:
            ours = _packed(loaded, texts, computing)
            _hold_as_near(ours, _alone(model, texts), exact)
    _check_draw(loaded, ours[0][:1])
    if half and model.device.type != "cpu":
        errors.free_cached_memory()  # of the wide weights: the cache gets a share of what is free


def _hold_exactly(ours: Logits, exact: Logits) -> None:
    for mine, wanted in zip(ours, exact, strict=True):
        off = _off((mine - wanted).abs().max(), wanted)
        if not off <= TOLERANCE:
            raise unfit(f"in a batch its logits are off by {off:.1%} of what they are alone")


def _hold_as_near(ours: Logits, theirs: Logits, exact: Logits) -> None:
    """`theirs` are of the class by itself, in the dtype of `ours`."""
    own = max(_off(_distance(logits, wanted), wanted) for logits, wanted in zip(theirs, exact, strict=True))
    for mine, wanted in zip(ours, exact, strict=True):
        off = _off(_distance(mine, wanted), wanted)
        if not off <= max(FURTHER * own, TOLERANCE) < float("inf"):
            raise unfit(f"in a batch its logits are {off:.2%} from those in float32, and alone only {own:.2%}")


def _distance(logits: Any, wanted: Any) -> Any:
    """Of most positions: in a mixture of experts, rounding may choose other experts at a few of them."""
    return (logits - wanted).square().mean(dim=-1).sqrt().median()


def _off(distance: Any, wanted: Any) -> float:
    """Relative to the largest logit."""
    return float(distance) / (float(wanted.abs().max()) or 1.0)


def _check_draw(loaded: NativeModel, logits: Any) -> None:
    """Draw from one row of logits, where they are: plainly and with a cut-off."""
    device = loaded.model.device
    rows = [
        _sequence(loaded, [0], number, sampling=sampling)
        for number, sampling in enumerate((Sampling(), Sampling(top_k=50, top_p=0.9)))
    ]
    try:
        drawn = [one.token_id for one in sample(logits.repeat(2, 1), rows) if isinstance(one, Sampled)]
    except (RuntimeError, TypeError, ValueError) as exc:
        if errors.is_out_of_memory(exc):
            raise
        raise LoadFailed(f"no id can be drawn on {device} ({one_line(exc)}); set device cpu") from exc
    chances = torch.softmax(logits.cpu().double(), dim=-1)[0]
    ends = chances.cumsum(dim=-1)
    if len(drawn) < len(rows) or not all(0 <= token_id < len(ends) for token_id in drawn):
        raise LoadFailed(f"no id can be drawn on {device}: its logits come out as no numbers; set device cpu")
    end = float(ends[drawn[0]])
    if not end - float(chances[drawn[0]]) - DRAWN <= unit(0, 0) <= end + DRAWN:
        raise LoadFailed(f"ids drawn on {device} do not follow their probabilities; set device cpu")


def _texts(loaded: NativeModel) -> list[Text]:
    """Random ids. The last `DECODED` of each text take the place of ids that would have been sampled."""
    rng = random.Random(0)  # noqa: S311 - not for secrets
    vocabulary = int(loaded.model.get_input_embeddings().num_embeddings)
    lengths = [n for n in LENGTHS if n + DECODED <= loaded.context_length]
    window = getattr(loaded.model.config.get_text_config(), "sliding_window", None)
    if isinstance(window, int) and 0 < window <= LONGEST_WINDOW and window + 8 + DECODED <= loaded.context_length:
        lengths.append(window + 8)
    return [[rng.randrange(vocabulary) for _ in range(length + DECODED)] for length in lengths or [1]]


def _sequence(loaded: NativeModel, prompt: Text, number: int, *, sampling: Sampling | None = None) -> Sequence:
    return Job.of(
        EngineRequest(
            request_id="self-test",
            prompt_ids=tuple(prompt),
            context_length=loaded.context_length,
            max_tokens=DECODED,
            seeds=(0,),
            sampling=sampling or Sampling(),
        ),
        number,
    ).sequences[0]


def _packed(loaded: NativeModel, texts: list[Text], computing: Pass) -> Logits:
    model = loaded.model
    sequences = [_sequence(loaded, text[:-DECODED], number) for number, text in enumerate(texts)]
    longest = max(len(sequence.ids) for sequence in sequences) + DECODED
    num_blocks = len(sequences) * (longest // BLOCK_TOKENS + 1)
    pool = BlockPool(dict.fromkeys(loaded.windows.values(), num_blocks), shares=False)
    cache = KvCache(loaded.shapes, pool.sizes, windows=loaded.windows, dtype=model.dtype, device=model.device)
    scheduler = Scheduler(pool, max_batch=len(sequences), budget=TokenBudget(alone=40, beside=7), headroom=1)
    runner = Runner(model, loaded.stage, cache, computing.attention(loaded.layers, cache), computing.forward)
    computed_logits: dict[Sequence, list[Any]] = {sequence: [] for sequence in sequences}
    for sequence in sequences:
        scheduler.add(sequence.job)
    while not scheduler.idle:
        planned = scheduler.schedule()
        logits = runner.forward(planned)
        scheduler.computed(planned)
        for work, row in zip([work for work in planned if work.samples], logits.float(), strict=True):
            computed_logits[work.sequence].append(row)
            work.sequence.ids.append(texts[work.sequence.job.number][len(work.sequence.ids)])
            if work.sequence.num_sampled == DECODED:
                scheduler.end(work.sequence)
    return [torch.stack(logits) for logits in computed_logits.values()]


def _alone(model: Any, texts: list[Text]) -> Logits:
    """By the model's own eager attention, text by text."""
    model.set_attn_implementation("eager")
    try:
        logits = [
            model(input_ids=torch.tensor([text[:-1]], device=model.device), use_cache=False, logits_to_keep=DECODED)
            .logits[0]
            .float()
            for text in texts
        ]
    finally:
        model.set_attn_implementation(NAME)
    if any(bool((found.isnan() | found.isposinf()).any()) for found in logits):
        raise LoadFailed("the model's own logits are not numbers: its weights are damaged, or need a wider dtype")
    return logits
