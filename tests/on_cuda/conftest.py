"""The tests of `on_device` on a CUDA device (`make test-cuda`). Without one they fail, and are not skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytest.register_assert_rewrite(*(f"on_device.test_{name}" for name in ("attention", "draws", "engine", "steps")))

from on_device.devices import CUDA, Device  # noqa: E402 - its asserts are rewritten

os.environ.pop("CXX", None)  # as in tests of `compile`: here a compiler is wanted


def pytest_configure(config: pytest.Config) -> None:
    if not torch.cuda.is_available():
        pytest.exit("make test-cuda needs a CUDA device, and this torch sees none", returncode=1)
    config.addinivalue_line("filterwarnings", "default")  # the compiler's own are no fault of ours


@pytest.fixture(scope="session")
def device() -> Device:
    return CUDA


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """One process has the programs of one model, and not of all these."""
    yield
    torch._dynamo.reset()
