"""How much of the prompts goes into a step. No tensors and no clock here.

The unit of cost is one token's way through the model's linear layers. Attention comes on top of it and grows with what
stands before the token: of SmolLM2-135M a token at position 8,000 costs some five times as much as the first one. So a
budget in plain tokens would let one long prompt stall the streams more and more along its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What the prompts of a step may cost: `alone` where nothing decodes; else `beside`, and on top of it `share` times
    what the decodes cost.

    A chunk of n tokens that ends at position p costs `n + p * (n * attention + reading)`: its way through the layers,
    each token's attention to what came before, and the keys and values that are read once for all of them.
    Of the first prompt of a step at least so many tokens are taken as `least` says, whatever they cost.
    """

    alone: float = 256
    beside: float = 64
    share: float = 0.0
    attention: float = 0.0
    reading: float = 0.0
    least: int = 1

    def cost(self, start: int, count: int) -> float:
        return count + (start + count) * (count * self.attention + self.reading)

    def fitting(self, room: float, start: int) -> int:
        """The most tokens from `start` on that cost no more than `room`."""
        left = room - start * self.reading
        if left <= 0:
            return 0
        first = 1 + start * self.attention + self.reading
        return int(2 * left / (first + sqrt(first * first + 4 * self.attention * left)) + 1e-9)


class Room:
    """What is left of the budget of one step, in which the tokens at these positions are decoded.

    So many `prompts` want of it. Beside decodes each of them counts: all of them together cost the decodes the same
    time whether it is taken in one step or in many, and in one step they are served sooner.
    """

    def __init__(self, budget: TokenBudget, decoded: Sequence[int], prompts: int = 1) -> None:
        self._budget = budget
        self._left = budget.alone
        if decoded:
            beside = budget.beside + budget.share * sum(budget.cost(position, 1) for position in decoded)
            self._left = max(beside, min(beside * prompts, budget.alone))
        self._prompts = prompts
        self._taken = False

    def __bool__(self) -> bool:
        return self._left >= 1 or not self._taken

    def take(self, start: int, pending: int) -> int:
        """So many of a prompt's `pending` tokens from `start` on go into the step; they are paid for.

        What does not fit as a whole leaves half of the room to those after it, so that no short prompt waits for the
        whole of a long one.
        """
        self._prompts -= 1
        least = 0 if self._taken else self._budget.least
        count = self._budget.fitting(self._left, start)
        if count < pending and self._prompts > 0:
            count = self._budget.fitting(self._left / 2, start)
        count = min(max(count, least), pending)
        if count:
            self._taken = True
            self._left -= self._budget.cost(start, count)
        return count


SHARE = 0.8
"""A step with prompts in it may cost so much more than it would without them."""

LEAST = 4
"""Where even this is dear, prompts are slow beside decodes, but they move."""

ATTENTION = 1.5
"""Attention does its multiplications so much slower than the linear layers do theirs."""

ATTENTION_BY_KERNEL = 0.7
"""The same of our own attention, which is there when steps are compiled."""

READING_BY_KERNEL = 0.4
"""It computes while it reads: so much of the time that the reading takes is left."""

WEIGHTS_ON_CPU = 25.0
"""So many tokens' products take as long as reading all weights once, which is most of a step that only decodes."""

WEIGHTS_ON_ACCELERATOR = 256.0
"""The same where there is far more arithmetic than memory to feed it."""

ALONE_ON_CPU = 512.0
ALONE_ON_ACCELERATOR = 2048.0


def budget_for(*, on_cpu: bool, weights: int, attended: int, cached: int, by_kernel: bool = False) -> TokenBudget:
    """By the shapes of a model, all of whose weights and rows are of one type.

    A token is multiplied with `weights` numbers, and with `attended` more for each position before it; of one position
    the cache holds `cached` numbers.
    """
    reading = WEIGHTS_ON_CPU if on_cpu else WEIGHTS_ON_ACCELERATOR
    return TokenBudget(
        alone=ALONE_ON_CPU if on_cpu else ALONE_ON_ACCELERATOR,
        beside=SHARE * reading,
        share=SHARE,
        attention=(ATTENTION_BY_KERNEL if by_kernel else ATTENTION) * attended / weights,
        reading=(READING_BY_KERNEL if by_kernel else 1) * reading * cached / weights,
        least=LEAST,
    )
