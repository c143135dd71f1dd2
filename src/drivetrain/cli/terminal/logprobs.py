"""The logprobs of an answer as a table to read: a token a line, with how likely it and its alternatives were."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drivetrain.cli.terminal import output
from drivetrain.core.results import Choice, TokenLogprob, TopLogprob


def print_logprobs(choices: Sequence[Choice]) -> None:
    """Below the answer, for each choice that has them."""
    for choice in choices:
        if choice.logprobs is None:
            continue
        output.line()
        if len(choices) > 1:
            output.line(f"--- {choice.index}")
        output.line(output.table(("TOKEN", "LOGPROB", "SHARE", "ALTERNATIVES"), map(_row, choice.logprobs)))


def _row(token: TokenLogprob) -> tuple[str, str, str, str]:
    if token.logprob is None:
        return repr(token.token), "-", "-", "the first token of the prompt"
    others = [_other(one) for one in token.top if one.token_id != token.token_id]
    return repr(token.token), f"{token.logprob:.4f}", _share(token.logprob), "  ".join(others)


def _other(one: TopLogprob) -> str:
    return f"{one.token!r} {_share(one.logprob)}"


def _share(logprob: float) -> str:
    """Of a hundred; a token may have none."""
    return f"{math.exp(logprob):.1%}"
