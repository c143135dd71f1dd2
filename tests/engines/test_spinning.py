"""Threads that wait for one another do not take the cores from everybody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.engines.base.spinning import briefly

LOADED = """
import asyncio, os, sys
from drivetrain import Worker

found = []
sys.addaudithook(lambda event, args: found.append(os.environ.get("GOMP_SPINCOUNT"))
    if event == "import" and args[0] == "torch" else None)

async def main():
    async with await Worker.open(sys.argv[1], engine=sys.argv[2]):
        print(found[0])

asyncio.run(main())
"""


def test_how_threads_wait_is_the_callers_to_say() -> None:
    assert briefly({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": "10000"}
    for said in ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "passive"}):
        assert briefly(said) == said


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_an_engine_says_it_before_torch_is_there(engine: str, checkpoint: Callable[[str], Path]) -> None:
    """It is read once, when torch is imported."""
    free = {name: value for name, value in os.environ.items() if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    command = [sys.executable, "-c", LOADED, str(checkpoint("llama")), engine]
    done = subprocess.run(command, env=free, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10000"]
