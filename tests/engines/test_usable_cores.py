"""Every engine that computes here takes the cores that there are, and no more; what the caller says holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.engines.llamacpp import options
from drivetrain.engines.vllm.threads import usable_cores_only
from drivetrain.telemetry import cores

ONE_CORE = """
import sys
import torch
from drivetrain import sync
from drivetrain.telemetry import cores

cores.cpu_quota = lambda: 1.5
path, engine, *numbers = sys.argv[1:]
for taken in map(int, numbers):
    torch.set_num_threads(taken)
    with sync.Worker.open(path, engine=engine):
        print(torch.get_num_threads())
"""


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize(("taken", "said", "threads"), [((3, 1), {}, 1), ((3,), {"OMP_NUM_THREADS": "3"}, 3)])
def test_torch_keeps_to_a_quota(
    engine: str, taken: tuple[int, ...], said: dict[str, str], threads: int, checkpoint: Callable[[str], Path]
) -> None:
    """Whatever number of threads it finds."""
    others = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", ONE_CORE, str(checkpoint("llama")), engine, *map(str, taken)]
    done = subprocess.run(command, env=others | said, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(threads)] * len(taken)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Of eight processors and four cores, with a quota of three."""
    monkeypatch.setattr(cores, "bound_processors", lambda: set(range(8)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: 3.0)
    monkeypatch.setattr("drivetrain.engines.llamacpp.options.physical_cores", lambda: 4)
    monkeypatch.setattr("drivetrain.engines.vllm.threads.physical_cores", lambda processors: 8)
    return monkeypatch


def test_llamacpp_is_told_of_fewer_threads_than_it_would_take(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def threads(**said: int) -> int | None:
        return options.read_options(said, {}, tmp_path / "model.gguf").threads

    assert threads() == 3
    assert threads(threads=6) == 6
    for quota in (4.0, 6.0, None):
        machine.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        assert threads() is None, quota


@pytest.mark.parametrize(
    ("said", "processes", "told"),
    [
        ({}, 1, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "3"}),
        ({}, 2, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}),
        ({}, 4, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}),
        ({"OMP_NUM_THREADS": "2"}, 1, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2"}),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0-7"}, 1, {"VLLM_CPU_OMP_THREADS_BIND": "0-7"}),
    ],
)
def test_vllms_processes_are_told_and_no_others(
    machine: pytest.MonkeyPatch, said: dict[str, str], processes: int, told: dict[str, str]
) -> None:
    environment = {"A": "b"} | said
    with usable_cores_only(environment, processes):
        assert environment == {"A": "b"} | told
    assert environment == {"A": "b"} | said
    machine.setattr(cores, "cpu_quota", lambda: 7.0)
    with usable_cores_only(environment):
        assert environment == {"A": "b"} | said
