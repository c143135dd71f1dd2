"""How much of the prompts goes into a step. No tensors and no clock here.

The unit of cost is one token's way through the model's linear layers. Attention comes on top and grows with what stands
before the token: in SmolLM2-135M, a token at position 8,000 costs some five times as much as the first one. A budget in
plain tokens would let a long prompt stall the streams more and more along its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What the prompts of a step may cost: `alone` where nothing decodes; else `beside`, and on top of it `share` times
    what the decodes cost, or, if that is more, `held_up` divided by their number: the fewer they are, the longer a step
    may hold them up. Prompts that end in the step may go in as a whole, for `held_up` together, however many decode: to
    hold them up once is better than to make many steps longer.

    A chunk of n tokens that ends at position p costs `n + p * (n * attention + reading)`: its way through the layers,
    each token's attention to what came before, and the keys and values that are read once for all of them.
    At least `least` tokens of a step's first prompt are taken, whatever they cost.
    """

    alone: float = 256
    beside: float = 64
    share: float = 0.0
    attention: float = 0.0
    reading: float = 0.0
    least: int = 1
    held_up: float = 0.0
    riding: float = 0.0
    """The tokens of a step that take no longer than to read the weights."""

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
    """What is left of the budget of one step, which decodes the tokens at these positions and has `prompts` waiting.

    Beside decodes, each prompt adds to the room: together they cost the decodes the same time in one step as in many,
    and in one step they are served sooner.
    """

    def __init__(self, budget: TokenBudget, decoded: Sequence[int], prompts: int = 1) -> None:
        self._budget = budget
        self._left = budget.alone
        self._whole = budget.held_up if decoded else 0.0
        if decoded:
            beside = budget.beside + budget.share * sum(budget.cost(position, 1) for position in decoded)
            beside = max(beside, budget.held_up / len(decoded))
            self._left = max(beside, min(beside * prompts, budget.alone))
        self._prompts = prompts
        self._taken = False

    def __bool__(self) -> bool:
        return max(self._left, self._whole) >= 1 or not self._taken

    def shared(self) -> Room:
        """For something else in the step: half of it, if prompts want some too. What it leaves comes back.

        Nothing of it goes in as a whole: that is for prompts.
        """
        other = copy(self)
        other._whole = 0.0
        other._left = self._left / 2 if self._prompts else self._left
        other._prompts = 0
        self._left -= other._left
        return other

    def take_back(self, other: Room) -> None:
        """What is left of what was `shared`."""
        self._left += other._left

    def take(self, start: int, pending: int, shorter_waits: Callable[[], bool] = lambda: False) -> int:
        """How many of a prompt's `pending` tokens from `start` on go into the step; takes their cost off the room.

        A prompt that does not fit as a whole leaves half of the room to those after it if `shorter_waits` among them.
        """
        least = 0 if self._taken else self._budget.least
        count = self._budget.fitting(self._left, start)
        if count < pending and self._budget.cost(start, pending) <= self._whole:
            count = pending
        elif 0 < count < pending and shorter_waits():
            count = self._budget.fitting(self._left / 2, start)
        count = min(max(count, least), pending)
        if count:
            self._taken = True
            cost = self._budget.cost(start, count)
            self._left -= cost
            self._whole -= cost
        return count


SHARE = 0.8
"""How much more a step may cost with prompts in it, as a share of its cost without them."""

LEAST = 4
"""Where even these are expensive, prompts are slow beside decodes, but they move."""

ATTENTION = 1.5
"""How much slower attention multiplies than the linear layers do."""

ATTENTION_BY_KERNEL = 0.7
"""The same for our own attention, which comes with compiled steps."""

READING_BY_KERNEL = 0.4
"""The share of the reading time that remains, since it computes while it reads."""

WEIGHTS_ON_CPU = 25.0
"""The tokens whose products take as long as reading all weights once, most of a step that only decodes."""

WEIGHTS_ON_ACCELERATOR = 256.0
"""The same where arithmetic is much faster than memory."""

ALONE_ON_CPU = 256.0
"""More rows make no product faster, and of a burst, what one step completes has its first token before the rest."""

ALONE_ON_ACCELERATOR = 2048.0


def largest_chunk(*, on_cpu: bool) -> int:
    """Tokens of one sequence in one step; a token costs one unit at least."""
    return int(ALONE_ON_CPU if on_cpu else ALONE_ON_ACCELERATOR)


def budget_for(*, on_cpu: bool, weights: int, attended: int, cached: int, by_kernel: bool = False) -> TokenBudget:
    """By a model's shapes, with weights and cache of one dtype.

    A token is multiplied with `weights` numbers, and with `attended` more for each position before it; the cache holds
    `cached` numbers per position.
    """
    reading = WEIGHTS_ON_CPU if on_cpu else WEIGHTS_ON_ACCELERATOR
    alone = ALONE_ON_CPU if on_cpu else ALONE_ON_ACCELERATOR
    return TokenBudget(
        alone=alone,
        beside=SHARE * reading,
        share=SHARE,
        attention=(ATTENTION_BY_KERNEL if by_kernel else ATTENTION) * attended / weights,
        reading=(READING_BY_KERNEL if by_kernel else 1) * reading * cached / weights,
        least=LEAST,
        held_up=alone,
        riding=reading,
    )
