"""Top-k, top-p and their kin for a whole batch, each row with its own values; and the draw.

Only the `CANDIDATES` likeliest ids are sorted. A row whose cut-off may lie beyond them is to be drawn again, from all.
Nothing here waits for the device. The order of the cut-offs, and what each keeps, are those of the library's warpers;
XTC, which the library lacks, comes after them, as in llama.cpp.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from drivetrain.core.sampling import Sampling
from drivetrain.engines.sample.send import send

CANDIDATES = 1024
TOO_FEW = -3
BLOCK = 256
"""Ids that the draw sums at once."""

NEARLY_ONE = 1 - 2**-52
"""Rounding must not carry the draw past the last id of a block, nor before its first."""

_TOP_H_CANDIDATES = 100
"""As many as the library's top-h looks at."""


def is_cut(sampling: Sampling) -> bool:
    """Whether anything but the temperature and XTC shapes the draw."""
    return bool(
        sampling.top_k
        or sampling.top_p < 1.0
        or sampling.min_p
        or sampling.typical_p < 1.0
        or sampling.top_h < 1.0
        or sampling.epsilon_cutoff
        or sampling.eta_cutoff
    )


@functools.cache
def can_draw_on(device: Any) -> bool:
    """Whether it has float64, which the sums of a draw need. Apple's GPUs do not: their logits come to the CPU."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return False
    return True


def draw(logits: Any, units: Any, thresholds: Any = None) -> Any:
    """One id per row, out of all ids. `units` are random numbers in [0, 1), one per row; `thresholds` are XTC's."""
    weights = torch.softmax(logits, dim=-1)
    if thresholds is not None:
        weights.masked_fill_(~_not_excluded(logits, weights, thresholds), 0.0)
    return _invert(weights, units)


def draw_cut(logits: Any, units: Any, samplings: Sequence[Sampling], count: int, thresholds: Any = None) -> Any:
    """One id per row, out of those that its cut-offs leave. `logits` are already divided by the temperature.

    `TOO_FEW` where the `count` likeliest ids were not enough to find its cut-offs: draw among all then.
    """
    ids, enough = _draw_among(logits, units, samplings, min(count, logits.shape[1]), thresholds)
    return ids.masked_fill_(~enough, TOO_FEW)


def _not_excluded(values: Any, p: Any, thresholds: Any) -> Any:
    """What XTC leaves: no id that is likelier than another one at or above the threshold.

    `p` are the probabilities, 0 of what is out already. `thresholds` is a column, above 1 in rows that it leaves alone.
    """
    likely = (p >= thresholds) & (p > 0)
    return values <= values.masked_fill(~likely, float("inf")).amin(dim=-1, keepdim=True)


def _draw_among(
    logits: Any, units: Any, samplings: Sequence[Sampling], count: int, thresholds: Any = None
) -> tuple[Any, Any]:
    """The ids, and for each row whether the `count` likeliest ids were enough to find its cut-offs."""
    cut = Cut.of(logits, count, samplings)
    cut.top_h()
    cut.top_k()
    cut.top_p()
    cut.min_p()
    cut.typical_p()
    cut.epsilon()
    cut.eta()
    if thresholds is not None:
        cut.xtc(thresholds)
    weights = torch.exp(cut.values - cut.values[:, :1]).masked_fill(~cut.keep, 0.0)
    return cut.ids.gather(1, _invert(weights, units)[:, None])[:, 0], cut.closed & ~cut.lost


@dataclass(slots=True)
class Cut:
    """Rows sorted by likelihood, and the ids that each keeps.

    A row is `closed` once it certainly keeps no id beyond the candidates. It is `lost` if a cut-off had to know that
    and could not.
    """

    values: Any
    ids: Any
    keep: Any
    closed: Any
    lost: Any
    total: Any
    """The log of the summed weights of all ids, candidates or not."""
    samplings: Sequence[Sampling]

    @classmethod
    def of(cls, logits: Any, count: int, samplings: Sequence[Sampling]) -> Cut:
        values, ids = logits.topk(count, dim=-1)
        closed = torch.isneginf(values[:, -1])  # then only banned ids lie beyond
        if count >= logits.shape[1]:
            closed = torch.ones_like(closed)
        total = torch.logsumexp(logits, dim=-1, keepdim=True)
        return cls(values, ids, ~torch.isneginf(values), closed, torch.zeros_like(closed), total, samplings)

    def top_h(self) -> None:
        share, on = self._values_of("top_h", 1.0)
        if on is None:
            return
        among = self.values[:, :_TOP_H_CANDIDATES]
        logs = torch.log_softmax(among, dim=-1)
        terms = torch.nan_to_num(-logs.exp() * logs)
        kept = terms.cumsum(dim=-1) <= terms.sum(dim=-1, keepdim=True) * share
        kept[:, 0] = True
        self._keep(on, torch.nn.functional.pad(kept, (0, self.values.shape[1] - kept.shape[1])))

    def top_k(self) -> None:
        counts, on = self._values_of("top_k", 0)
        if on is None:
            return
        last = self.values.gather(1, counts.long().clamp(1, self.values.shape[1]) - 1)
        self._keep(on, self.values >= last, last[:, 0] > self.values[:, -1])

    def top_p(self) -> None:
        share, on = self._values_of("top_p", 1.0)
        if on is None:
            return
        p = self._probabilities()
        before = p.cumsum(dim=-1) - p
        self._keep(on, before < share, before[:, -1] >= share[:, 0])

    def min_p(self) -> None:
        share, on = self._values_of("min_p", 0.0)
        if on is None:
            return
        kept = torch.exp(self.values - self.values[:, :1]) >= share
        self._keep(on, kept, ~kept[:, -1])

    def typical_p(self) -> None:
        mass, on = self._values_of("typical_p", 1.0)
        if on is None:
            return
        self.lost |= on & ~self.closed
        p = self._probabilities()
        logs = torch.where(self.keep, p.log(), 0.0)
        surprise = torch.where(self.keep, (-logs + (p * logs).sum(dim=-1, keepdim=True)).abs(), float("inf"))
        ranked, order = surprise.sort(dim=-1)
        last = (p.gather(1, order).cumsum(dim=-1) < mass).sum(dim=-1, keepdim=True)
        limit = ranked.gather(1, last.clamp_(max=ranked.shape[1] - 1))
        self._keep(on, surprise <= limit)

    def epsilon(self) -> None:
        least, on = self._values_of("epsilon_cutoff", 0.0)
        if on is None:
            return
        kept = self._probabilities() >= least
        # An id beyond the candidates is no likelier than the last of them.
        self._keep(on, kept | self._likeliest(), ~kept[:, -1])

    def eta(self) -> None:
        epsilon, on = self._values_of("eta_cutoff", 0.0)
        if on is None:
            return
        self.lost |= on & ~self.closed
        p = self._probabilities()
        entropy = -(p * torch.where(self.keep, p.log(), 0.0)).sum(dim=-1, keepdim=True)
        kept = p >= torch.minimum(epsilon, epsilon.sqrt() * torch.exp(-entropy))
        self._keep(on, kept | self._likeliest())

    def xtc(self, thresholds: Any) -> None:
        """Of a row that is not closed, anything: it is drawn again from all ids."""
        self.keep &= _not_excluded(self.values, self._probabilities(), thresholds)

    def _values_of(self, name: str, neutral: float) -> tuple[Any, Any]:
        """The rows' values as a column, and which rows use this cut-off; None if none does, without asking a device."""
        values = [getattr(sampling, name) for sampling in self.samplings]
        if all(value == neutral for value in values):
            return None, None
        device = self.values.device
        on = send(torch.tensor([value != neutral for value in values]), device)
        return send(torch.tensor(values, dtype=self.values.dtype), device)[:, None], on

    def _keep(self, on: Any, kept: Any, found: Any | None = None) -> None:
        """Cut the rows that are `on`. `found`: those whose cut-off lies among the candidates (default: all)."""
        self.keep &= kept | ~on[:, None]
        if found is None:
            self.closed |= on
            return
        self.lost |= on & ~found & ~self.closed
        self.closed |= on & found

    def _probabilities(self) -> Any:
        """Of the kept ids, summing to 1; in a row that is not closed, ids beyond the candidates have their share."""
        kept = self.values.masked_fill(~self.keep, float("-inf"))
        total = torch.where(self.closed[:, None], torch.logsumexp(kept, dim=-1, keepdim=True), self.total)
        return torch.exp(kept - total)

    def _likeliest(self) -> Any:
        return self.values >= self.values[:, :1]


def _invert(weights: Any, units: Any) -> Any:
    """The index at which the running sum of a row's weights passes its share.

    First the block, then the index in it: a running sum is slow, a sum is not.
    """
    blocks = torch.nn.functional.pad(weights, (0, -weights.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    sums = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = units[:, None] * sums[:, -1:]
    block = _passed(sums, target)
    within = blocks[torch.arange(len(blocks), device=blocks.device), block[:, 0]].cumsum(dim=-1, dtype=torch.float64)
    before = sums.gather(1, block) - within[:, -1:]
    left = torch.minimum((target - before).clamp_(min=0), within[:, -1:] * NEARLY_ONE)
    # A row of NaN or of zeros passes nowhere: it gets some id here, and its error later.
    return (block * BLOCK + _passed(within, left))[:, 0].clamp_(max=weights.shape[1] - 1)


def _passed(sums: Any, target: Any) -> Any:
    """The first index of each row where the sum is above the target."""
    return torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)
