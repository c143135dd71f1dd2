"""What is kept of a load that failed: the error, and nothing that its frames held."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Iterator

import pytest

from drivetrain.core.engine import Progress
from drivetrain.core.errors import LoadFailed
from drivetrain.scale.fleet.failure import let_go
from drivetrain.scale.fleet.fleet import Fleet
from drivetrain.scale.fleet.offer import Offer, Opened


class Weights:
    """Much memory."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def read(held: list[weakref.ref[Weights]]) -> None:
    weights = Weights()
    held.append(weakref.ref(weights))
    raise OSError("the file ends too early")


@pytest.mark.usefixtures("no_collector")
async def test_a_failed_model_is_gone_before_the_next_one_is_loaded() -> None:
    held: list[weakref.ref[Weights]] = []
    alive: list[int] = []

    async def broken(report: Progress) -> Opened:
        alive.append(sum(ref() is not None for ref in held))
        weights = Weights()
        held.append(weakref.ref(weights))
        try:
            read(held)
        except OSError as exc:
            raise LoadFailed("it could not be read") from exc
        raise AssertionError

    fleet = Fleet([Offer(name=name, open=broken) for name in "abc"])
    with pytest.raises(LoadFailed) as caught:
        await fleet.start()
    assert alive == [0, 0, 0]
    assert len(held) == 6
    assert not any(ref() for ref in held)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in read" in shown, "the log still says where it was"
    assert "the file ends too early" in shown
    await fleet.stop()


@pytest.mark.usefixtures("no_collector")
def test_errors_of_several_tasks_and_those_that_name_each_other() -> None:
    held: list[weakref.ref[Weights]] = []
    found: list[OSError] = []
    for _ in range(2):
        try:
            read(held)
        except OSError as exc:
            found.append(exc)
    found[0].__cause__, found[1].__context__ = found[1], found[0]
    group = ExceptionGroup("both", found)
    assert all(ref() for ref in held)
    let_go(group)
    assert not any(ref() for ref in held)
