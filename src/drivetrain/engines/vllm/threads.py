"""How many threads vLLM computes with on a CPU, where there are fewer cores than it sees."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from drivetrain.telemetry.cores import bound_processors, fewer_than, physical_cores

BIND = "VLLM_CPU_OMP_THREADS_BIND"
THREADS = "OMP_NUM_THREADS"


@contextmanager
def usable_cores_only(environment: MutableMapping[str, str], processes: int = 1) -> Iterator[None]:
    """For the processes that are started inside. What the caller says of vLLM's threads holds.

    By itself vLLM binds a thread to each core but one for each process, whatever quota there is. Fewer are not bound:
    every container on a machine would choose the same cores.
    """
    cores = physical_cores(bound_processors())
    threads = fewer_than(cores - processes if cores > processes else cores)
    if threads is None or BIND in environment:
        yield
        return
    ours = {BIND: "nobind"} | ({} if THREADS in environment else {THREADS: str(max(1, threads // processes))})
    environment.update(ours)
    try:
        yield
    finally:
        for name in ours:
            environment.pop(name, None)
