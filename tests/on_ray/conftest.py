"""Tests on a Ray of their own: in `.venv-ray` (`make test-ray`), with one small local Ray for the whole session.

The contract's cases are here for what crosses between a handle and a replica: fields, events, typed errors, cancels,
deadlines, counts. The fake engine takes nearly every field and its steps cost nothing, so each case runs on it, over
the link and by Ray's own items. On llama.cpp run only those that a file names in `ON_LLAMACPP`: where a real engine
must be free again behind the handle, and one or two for each kind of thing in an answer that a fake one makes up: text
in halves of characters, logprobs, vectors, scores by logits. What an engine computes, and what a worker does in its own
process, is proven by the contract's own suite, on every engine.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

with warnings.catch_warnings():  # Ray's own, at its import
    warnings.simplefilter("ignore")
    from ray import serve

    from contract.rewriting import rewrite_asserts
    from drivetrain.scale.ray import cluster
    from on_ray.deployed import free_port
    from on_ray.ray_rig import RIGS, RayRig, RigWorker

rewrite_asserts(Path(__file__).parent)


def pytest_configure(config: pytest.Config) -> None:
    """What Ray and its libraries do at their end is not ours to mend."""
    for warning in ("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"):
        config.addinivalue_line("filterwarnings", warning)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="session")
def ray_here(smollm2: str) -> Iterator[int]:
    """The port of its HTTP proxy."""
    port = free_port()
    with cluster.joined(None, num_cpus=2):
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        yield port
        serve.shutdown()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" in metafunc.fixturenames:
        named = getattr(metafunc.module, "ON_LLAMACPP", ())
        unknown = [name for name in named if not hasattr(metafunc.module, name)]
        assert not unknown, f"ON_LLAMACPP names what is not there: {unknown}"
        rigs = RIGS.keys() if metafunc.function.__name__ in named else RIGS.keys() - {"llamacpp"}
        metafunc.parametrize("rig", sorted(rigs), indirect=True, scope="session")


@pytest.fixture(scope="session")
def rig(request: pytest.FixtureRequest, ray_here: int) -> RayRig:
    return RayRig(request.param)


@pytest.fixture(scope="session")
async def worker(rig: RayRig) -> AsyncIterator[RigWorker]:
    async with rig.open() as made:
        yield made
