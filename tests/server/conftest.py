"""Tests that take `served` run on every engine of `ENGINES`; those that need an exact text make a fake themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract.native_rig import NativeRig
from contract.rigs import NEED_WEIGHTS, FakeRig, LlamaCppRig, Rig, TransformersRig
from server.serving import Served, fake, serving

ENGINES: dict[str, Callable[[Callable[[str], Path]], Rig]] = {
    "fake": lambda checkpoint: FakeRig(),
    "llamacpp": lambda checkpoint: LlamaCppRig(whole=True),  # a part of it cannot show all that `conform` asks
    "native": NativeRig,
    "transformers": TransformersRig,
}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in NEED_WEIGHTS else []) for name in sorted(ENGINES)],
    scope="session",
)
def rig(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Rig:
    return ENGINES[request.param](checkpoint)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All cases of `conform` on a real model that is not ours: six minutes."""
    marked = (item for item in items if getattr(item, "originalname", "") == "test_full_marks")
    for item in marked:
        assert isinstance(item, pytest.Function)
        if item.callspec.params["rig"] in NEED_WEIGHTS:
            item.add_marker(pytest.mark.in_turn)


@pytest.fixture(scope="session")
def shared(rig: Rig) -> Iterator[Served]:
    with serving(lambda: rig.open(max_waiting=256)) as made:
        yield made


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """One server an engine for all tests; each leaves it as it found it."""
    yield shared
    shared.settle()


@pytest.fixture(scope="module")
def fake_server() -> Iterator[Served]:
    with serving(fake()) as made:
        yield made
        made.settle()


@pytest.fixture
def unharmed(fake_server: Served) -> Iterator[Served]:
    """A fake's server that still works after each test."""
    yield fake_server
    fake_server.works()


def can(served: Served, *names: str) -> bool:
    """Whether the model's published capabilities list all of these request fields."""
    status, _, data = served.request("GET", f"/v1/models/{served.model}")
    assert status == 200
    import json

    parameters = json.loads(data)["capabilities"]["parameters"]
    return all(name in parameters for name in names)
