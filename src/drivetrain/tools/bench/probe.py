"""The limits of the machine, measured in a separate process: `python -m drivetrain.tools.bench.probe DEVICE DTYPE`.

It prints one JSON object. A ceiling is the best of many tries: other work on the machine only lowers it.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from drivetrain.engines.checkpoint.step_threads import keep_to_usable_cores
from drivetrain.telemetry.cores import usable_cores
from drivetrain.telemetry.memory import host_memory

READ_BYTES = 2**29
TRIES = 6
SIZES = (1024, 2048, 3072)

Work = Callable[[], object]


def main(device: str, dtype: str) -> None:
    if importlib.util.find_spec("torch") is not None:
        found = by_torch(device, dtype, _read_bytes())
    elif importlib.util.find_spec("numpy") is not None and device == "cpu":
        found = by_numpy(_read_bytes())
    else:
        found = {"missing": "torch is not installed" if device != "cpu" else "neither torch nor numpy is installed"}
    sys.stdout.write(json.dumps(found) + "\n")


def by_torch(device: str, dtype: str, num_bytes: int) -> dict[str, Any]:
    import torch

    keep_to_usable_cores()
    kind: Any = getattr(torch, dtype)
    numbers: Any = torch.ones(num_bytes // kind.itemsize, dtype=kind, device=device)
    rows, ones = numbers.view(-1, 4096), torch.ones(4096, dtype=kind, device=device)
    squares: list[Any] = [torch.ones(size, size, dtype=kind, device=device) for size in SIZES]

    def done(work: Work) -> Work:
        """With the wait for a device that works asynchronously."""
        return (lambda: (work(), torch.cuda.synchronize())) if device.startswith("cuda") else work

    reads = [done(numbers.sum), done(partial(rows.mv, ones))]
    products = [done(partial(square.matmul, square)) for square in squares]
    name: str = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    return {"with": f"torch {torch.__version__}", "device": name, "dtype": dtype, **_best(num_bytes, reads, products)}


def by_numpy(num_bytes: int) -> dict[str, Any]:
    """numpy reads with one thread, so each core gets a part; its product uses all by itself."""
    import numpy

    threads = usable_cores()
    parts: list[Any] = numpy.array_split(numpy.ones(num_bytes // 4, dtype=numpy.float32), threads)
    squares: list[Any] = [numpy.ones((size, size), dtype=numpy.float32) for size in SIZES]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        best = _best(
            num_bytes,
            [lambda: list(pool.map(numpy.sum, parts))],
            [partial(numpy.matmul, square, square) for square in squares],
        )
    return {"with": f"numpy {numpy.__version__}", "device": "CPU", "dtype": "float32", **best}


def _best(num_bytes: int, reads: list[Work], products: list[Work]) -> dict[str, float]:
    flops = [2 * size**3 / _fastest_s(product) for size, product in zip(SIZES, products, strict=True)]
    return {
        "memory_gb_per_s": num_bytes / min(map(_fastest_s, reads)) / 1e9,
        "product_gflop_per_s": max(flops) / 1e9,
    }


def _fastest_s(work: Work) -> float:
    work()
    times = []
    for _ in range(TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _read_bytes() -> int:
    """Far more than any cache holds, if there is room for it."""
    available = host_memory().available_bytes
    return READ_BYTES if available == 0 or available > 4 * READ_BYTES else READ_BYTES // 8


if __name__ == "__main__":
    main(*sys.argv[1:3])
