"""When Python looks for what has gone."""

from __future__ import annotations

import gc

from drivetrain.telemetry.memory import GROWTH, growing_heap, settle_heap


def test_hardly_any_collections_until_the_heap_has_settled() -> None:
    usual = gc.get_threshold()
    try:
        with growing_heap():
            assert gc.get_threshold()[0] == GROWTH
            settle_heap()
            assert gc.get_threshold() == usual
    finally:
        gc.unfreeze()


def test_the_usual_collections_come_back_where_nothing_settles() -> None:
    usual = gc.get_threshold()
    with growing_heap():
        pass
    assert gc.get_threshold() == usual
