"""The longest known beginning, in blocks, and nothing of other tenants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engines.native.kv.prefix import PrefixIndex
from drivetrain.engines.native.kv.rows import CacheRow

ids = st.lists(st.integers(0, 2), max_size=30)


@given(st.lists(ids, max_size=8), ids, st.integers(0, 30))
def test_a_hit_is_a_common_beginning(held: list[list[int]], wanted: list[int], limit: int) -> None:
    index = PrefixIndex(block=4)
    slots = {CacheRow(64, i): row for i, row in enumerate(held)}
    for slot, row in slots.items():
        index.add(slot, row)
    hit = index.find(wanted, limit)
    best = max((_blocks(row, wanted[:limit]) for row in held), default=0)
    if hit is None:
        assert best == 0
        return
    assert 4 <= hit.length <= min(limit, len(wanted))
    assert hit.length >= best * 4
    assert slots[hit.slot][: hit.length] == wanted[: hit.length]
    assert index.find(wanted, limit, salt="another") is None
    for slot in slots:
        index.forget(slot)
    assert len(index) == 0
    assert index.find(wanted, limit) is None


def _blocks(a: list[int], b: list[int]) -> int:
    count = 0
    while (count + 1) * 4 <= min(len(a), len(b)) and a[: (count + 1) * 4] == b[: (count + 1) * 4]:
        count += 1
    return count


def test_what_is_known_already_is_not_worth_keeping() -> None:
    index = PrefixIndex(block=4)
    assert not index.worth_keeping([1, 2, 3])
    assert index.worth_keeping([1, 2, 3, 4, 5])
    index.add(CacheRow(64, 0), [1, 2, 3, 4, 5, 6, 7, 8])
    assert not index.worth_keeping([1, 2, 3, 4, 5])
    assert index.worth_keeping([1, 2, 3, 4, 5], salt="another")
    assert index.worth_keeping([1, 2, 3, 5])
