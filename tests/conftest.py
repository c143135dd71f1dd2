"""Shared fixtures: tiny checkpoints of real architectures, and the real small model."""

from __future__ import annotations

import gc
import importlib.util
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("drivetrain", deadline=None)  # a busy machine is no failure
settings.load_profile("drivetrain")

if importlib.util.find_spec("vllm") is None:  # which has an environment of its own, and needs the compiler
    os.environ["CXX"] = "no-compiler-in-tests"
    """`compile` is auto: with a compiler, each native engine of each test would start to compile behind it, and take
    the cores from the others. Tests of `compile` unset it."""

CACHE = Path(__file__).parent.parent / ".cache"


TURNS = 3
LEFT = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """CI takes a third of the longest tests at each commit, so that each runs at one in three."""
    if now := os.environ.get("TURN"):
        left = {item for item in items if turn_of(item) not in (None, int(now) % TURNS)}
        config.stash[LEFT] = 0 < len(left) == len(items)
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def turn_of(item: pytest.Item) -> int | None:
    """Without a turn of its own, the test's name decides."""
    mark = item.get_closest_marker("in_turn")
    if mark is None:
        return None
    turn: int = mark.args[0] if mark.args else zlib.crc32(item.nodeid.encode()) % TURNS
    assert turn in range(TURNS)
    return turn


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Nothing to run is no failure where it is the turn of others."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(LEFT, False):
        session.exitstatus = pytest.ExitCode.OK


def pytest_collection_finish() -> None:
    """Nine thousand collected tests are no garbage: who looks for it, as an engine does after a fault, skips them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Path]:
    """A folder with tiny random weights of an architecture, made once and kept in `.cache`."""

    def make(name: str) -> Path:
        import tiny

        return tiny.checkpoint(name, CACHE / "tiny")

    return make


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The name of the small real model, pulled if it is not there."""
    from drivetrain.store.store import Store

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    Store().pull("smollm2-135m")
    return "smollm2-135m"
