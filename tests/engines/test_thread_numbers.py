"""The same answers to the last bit, whatever the number of threads, and when it changes between two steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(600)

ANSWERS = """
import asyncio, itertools, json, sys
from pathlib import Path

from drivetrain.core.engine import ModelSpec, WeightsFormat
from drivetrain.engines.base.thread_limit import ThreadLimit
from drivetrain.worker.settings import Settings
from drivetrain.worker.worker import EngineWorker

async def main(engine, path, options):
    spec = ModelSpec(name="m", path=Path(path), format=WeightsFormat.SAFETENSORS, options=options)
    async with EngineWorker(engine(), spec, Settings()) as worker:
        async def one(length):
            words = " ".join(f"{number}" for number in range(length))
            asked = {"logprobs": 2, "ignore_eos": True, "seed": 7, "max_tokens": 5}
            result = await worker.generate(prompt=words, **asked)
            found = [(one.token_id, one.logprob.hex()) for one in result.choices[0].logprobs]
            return found + [sum((await worker.embed(words)).vectors[0]).hex()]
        return [await one(length) for length in (1, 3, 4, 5, 6, 9, 14, 40, 90)]

def numbers(*threads):
    ThreadLimit.look = lambda self, each=itertools.cycle(threads): next(each)

name, path, options = json.loads(sys.argv[1])
if name == "native":
    from drivetrain.engines.native.engine import NativeEngine as Engine
else:
    from drivetrain.engines.transformers.engine import TransformersEngine as Engine
told = []
for threads in ((2,), (1,), (1, 2, 2)):
    numbers(*threads)
    told.append(asyncio.run(main(Engine, path, options)))
print(json.dumps(told))
"""
"""In a process of its own: how torch's products round is settled before its first one."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that were compiled here, and no others."""
    return tmp_path_factory.mktemp("cache")


def answers(engine: str, path: Path, options: dict[str, Any], cache: Path) -> list[Any]:
    unset = ("OMP_NUM_THREADS", "MKL_CBWR", "CXX")  # the last one hides the compiler from the other tests
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["XDG_CACHE_HOME"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, json.dumps([engine, str(path), options])],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        pytest.param("native", {"compile": "off"}, id="native"),
        pytest.param("native", {"compile": "off", "quantize": "int8"}, id="int8", marks=pytest.mark.slow),
        pytest.param("native", {"compile": "on"}, id="compiled", marks=[pytest.mark.slow, pytest.mark.in_turn(0)]),
        pytest.param(
            "native",
            {"compile": "on", "quantize": "int8"},
            id="compiled int8",
            marks=[pytest.mark.slow, pytest.mark.in_turn(1)],
        ),
        pytest.param("transformers", {}, id="transformers", marks=pytest.mark.slow),
    ],
)
def test_answers_do_not_depend_on_the_threads(
    checkpoint: Callable[[str], Path], engine: str, options: dict[str, Any], cache: Path
) -> None:
    two, one, changing = answers(engine, checkpoint("llama"), options, cache)
    assert one == two
    assert changing == two
