"""Finding spelled special tokens, against the plainest search; and the time it takes with many of them."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.core.prompt import find_specials


def plainly(text: str, specials: frozenset[str]) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(text):
        here = [s for s in specials if s and text.startswith(s, at)]
        if here:
            longest = max(map(len, here))
            found.append((at, at + longest))
            at += longest
        else:
            at += 1
    return found


@given(st.text("<|a>", max_size=30), st.frozensets(st.text("<|a>", max_size=5), max_size=8))
def test_finds_what_a_plain_search_finds(text: str, specials: frozenset[str]) -> None:
    assert find_specials(text, specials) == plainly(text, specials)


def test_thousands_of_special_tokens_do_not_slow_a_long_text_down() -> None:
    specials = frozenset(f"<|reserved_special_token_{i}|>" for i in range(6000))
    started = time.process_time()
    assert find_specials("<|" * 1_000_000, specials) == []
    assert time.process_time() - started < 5  # an alternation of all of them takes some twenty
