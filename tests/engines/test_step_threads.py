"""torch's threads follow the limit on the engine's thread, and nowhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from drivetrain.core.results import ComputeThreads  # noqa: E402 - it needs torch
from drivetrain.engines.base.cores import CoreTimes  # noqa: E402
from drivetrain.engines.base.thread_limit import WINDOW_S, ThreadLimit  # noqa: E402
from drivetrain.engines.checkpoint.step_threads import StepThreads, round_alike  # noqa: E402


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def elsewhere() -> int:
    """What a thread that begins now computes with."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_they_follow_between_steps_on_this_thread_only() -> None:
    torch.set_num_threads(3)
    at, foreign = 0.0, 1.0

    def read() -> CoreTimes:
        return CoreTimes(foreign * at, 0.0)

    steps = StepThreads(ThreadLimit(3, cores=3, read=read, clock=lambda: at))
    with steps.computing():
        assert torch.get_num_threads() == 3
        at = 2 * WINDOW_S
        steps.look()
        assert (torch.get_num_threads(), elsewhere()) == (2, 3)
        assert steps.threads == ComputeThreads(2, 3)
    foreign = 0.0
    at += 1
    foreign = 2 * WINDOW_S / at  # nobody used them in the pause
    with steps.computing():
        assert (torch.get_num_threads(), elsewhere()) == (3, 3)


@pytest.mark.parametrize(("device", "yields"), [("cuda", True), ("cpu", False)])
def test_on_a_device_or_switched_off_nothing_is_changed(device: str, yields: bool) -> None:
    steps = StepThreads.of(torch.device(device), yields=yields)
    before = torch.get_num_threads()
    with steps.computing():
        steps.look()
    assert steps.threads is None
    assert torch.get_num_threads() == before


def test_on_a_cpu_the_most_is_what_torch_would_take() -> None:
    torch.set_num_threads(2)
    assert StepThreads.of(torch.device("cpu"), yields=True).threads == ComputeThreads(2, 2)


def test_what_the_environment_says_of_rounding_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"MKL_CBWR": "AVX2"}
    assert not round_alike(environment)
    assert environment == {"MKL_CBWR": "AVX2"}
    environment = {}
    assert not round_alike(environment), "torch is here already"
    assert environment == {}
    monkeypatch.delitem(sys.modules, "torch")
    assert round_alike(environment)
    assert environment == {"MKL_CBWR": "AUTO,STRICT"}
