"""How the budget for keys and values is divided among groups of layers, and how long a context it allows."""

from __future__ import annotations

import pytest

from drivetrain.core.errors import InvalidSetting, LoadFailed

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engines.native.kv.blocks import BLOCK_TOKENS, most_blocks
from drivetrain.engines.native.kv.groups import Window
from drivetrain.engines.native.kv.memory import fitting_context, num_blocks

CHUNK = 512

sizes_drawn = st.dictionaries(st.none() | st.integers(1, 5000), st.integers(1, 10**6), min_size=1, max_size=3)


def bytes_of(sizes: dict[Window, int], made: dict[Window, int]) -> int:
    return sum(size * made[window] for window, size in sizes.items())


@given(sizes_drawn, st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 10**11))
def test_a_context_fits_and_no_byte_is_spent_twice(
    sizes: dict[Window, int], wanted: int, max_batch: int, budget: int
) -> None:
    try:
        context = fitting_context(wanted, sizes, CHUNK, budget, stated=False)
    except LoadFailed:
        assert sum(sizes.values()) > budget
        return
    assert 0 < context <= wanted
    made = num_blocks(sizes, context, CHUNK, max_batch, budget)
    assert list(made) == list(sizes)
    assert bytes_of(sizes, made) <= budget
    evenly = budget // sum(sizes.values())
    for window, number in made.items():
        assert number >= most_blocks(context, window, CHUNK)
        if window is None and context <= evenly * BLOCK_TOKENS:
            assert number >= evenly, "windows take nothing from it that it would have had without groups"


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**10))
def test_full_attention_alone_takes_all(size: int, wanted: int, budget: int) -> None:
    if budget < size:
        with pytest.raises(LoadFailed):
            fitting_context(wanted, {None: size}, CHUNK, budget, stated=False)
        return
    context = fitting_context(wanted, {None: size}, CHUNK, budget, stated=False)
    assert context == min(wanted, budget // size * BLOCK_TOKENS)
    assert num_blocks({None: size}, context, CHUNK, 64, budget) == {None: budget // size}


def test_windows_allow_a_longer_context() -> None:
    """Five layers in six have a window, as in Gemma 3."""
    alike = fitting_context(1_000_000, {None: 6000}, CHUNK, 10**7, stated=False)
    mixed = fitting_context(1_000_000, {None: 1000, 512: 5000}, CHUNK, 10**7, stated=False)
    assert mixed > 5 * alike
    assert fitting_context(1_000_000, {512: 6000}, CHUNK, 10**7, stated=False) == 1_000_000
    with pytest.raises(InvalidSetting, match="kv_cache_gb"):
        fitting_context(1_000_000, {None: 1000, 512: 5000}, CHUNK, 10**6, stated=True)


def test_a_window_gets_no_more_than_all_texts_at_once_need() -> None:
    made = num_blocks({None: 1000, 512: 5000}, 4096, CHUNK, 4, 10**9)
    assert made[512] == 4 * most_blocks(4096, 512, CHUNK)
    assert made[None] == (10**9 - made[512] * 5000) // 1000
