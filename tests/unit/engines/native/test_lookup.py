"""What may come next, because it did before."""

from __future__ import annotations

import random

import pytest

from drivetrain.engines.native.schedule.lookup import FIRST, LONG, MOST, SHORT, Lookup

PHRASE = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def test_what_followed_the_newest_ids_before() -> None:
    assert Lookup().draft([*PHRASE, 1, 2, 3, *PHRASE[:SHORT]], 3) == tuple(PHRASE[SHORT : SHORT + 3])


def test_without_a_repeat_there_is_none() -> None:
    for ids in ([], [1], [1, 2, 3], PHRASE, [*PHRASE, 1, *PHRASE[: SHORT - 1]]):
        assert Lookup().draft(ids, 9) == ()


def test_the_longer_beginning_counts_and_of_equal_ones_the_latest() -> None:
    long, end = PHRASE[:LONG], PHRASE[LONG - SHORT : LONG]
    assert Lookup().draft([*long, 1, *end, 2, *long], 1) == (1,)
    assert Lookup().draft([*end, 1, *end, 2, *end], 1) == (2,)


def test_what_runs_in_a_circle_goes_on_in_it() -> None:
    assert Lookup().draft([7, 8, 7, 8, 7, 8], 4) == (7, 8, 7, 8)
    assert Lookup().draft([5] * 4, 3) == (5, 5, 5)


@pytest.mark.parametrize("limit", [-1, 0, 1, 2])
def test_no_more_than_wanted(limit: int) -> None:
    assert len(Lookup().draft([*PHRASE, *PHRASE[:SHORT]], limit)) == max(limit, 0)


def test_drafts_grow_while_they_are_right() -> None:
    ids = [*range(100), *range(LONG)]
    lookup = Lookup()
    lengths = []
    for _ in range(5):
        draft = lookup.draft(ids, 1000)
        lengths.append(len(draft))
        lookup.judge(len(draft))
        ids += draft
    assert lengths == [FIRST, 2 * FIRST, MOST, MOST, MOST]
    lookup.judge(1)
    assert len(lookup.draft(ids, 1000)) == FIRST


def test_after_a_wrong_one_only_a_long_beginning_counts() -> None:
    lookup = Lookup()
    ids = [*PHRASE, 1, *PHRASE[:SHORT]]
    assert lookup.draft(ids, 4)
    lookup.judge(0)
    assert lookup.draft(ids, 4) == ()
    ids += PHRASE[SHORT:LONG]
    assert lookup.draft(ids, 4) == tuple(PHRASE[LONG : LONG + 4])
    lookup.judge(1)
    ids += [1, *PHRASE[:SHORT]]
    assert lookup.draft(ids, 4)


def test_ids_whose_bytes_match_only_in_the_middle() -> None:
    """Four bytes an id: `1 << 8` and `1` have the same ones, a byte apart."""
    assert Lookup().draft([1 << 8] * 40 + [0] + [1] * SHORT, 4) == ()
    assert Lookup().draft([(1 << 24) + 1, 1 << 8] * 20, 1) in {((1 << 24) + 1,), (1 << 8,)}


def test_it_finds_what_a_plain_search_finds() -> None:
    rng = random.Random(3)
    found = 0
    for _ in range(300):
        ids = [rng.randrange(4) * 300 for _ in range(rng.randrange(60))]
        places = [at for at in range(len(ids) - SHORT) if ids[at : at + SHORT] == ids[-SHORT:]]
        draft = Lookup().draft(ids, 1)
        assert bool(draft) == bool(places)
        assert not draft or draft[0] in {ids[at + SHORT] for at in places}
        found += bool(draft)
    assert 50 < found < 300
