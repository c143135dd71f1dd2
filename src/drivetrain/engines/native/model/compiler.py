"""The process that compiles: it builds the model's class without weights, and writes its programs into a folder.

A process of its own, because tracing is Python's work for seconds, which would hold up every step of a running engine.
It ends when its input does, with all that it started, so that nothing is left behind a worker that is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivetrain.engines.native.model.recipe import Recipe

MADE = "made.json"
"""Written last: the digest of each file, and the tensors that each program takes."""

ATTENTION = "attention.so"
SHAPES = {"one": (1, 1), "several": (24, 7)}
"""Ids and logits in the example of each program: torch takes 0 and 1 for constants, and confuses equal numbers."""


def write_programs(recipe: Recipe, folder: Path) -> None:
    """Fill an empty folder."""
    import torch

    from drivetrain.engines.native.cpu.library import build
    from drivetrain.engines.native.model import tracing
    from drivetrain.engines.native.model.skeleton import skeleton

    torch.set_num_threads(recipe.num_threads)
    scratch = folder / "scratch"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes that outlive this one
    model, operands = skeleton(recipe)
    tensors = tracing.tensors_of(model, operands)
    inputs = {}
    for name, (num_ids, num_kept) in SHAPES.items():
        made = scratch / name
        made.mkdir(parents=True)
        names = tracing.compile_to(made / "program.so", model, operands, num_ids, num_kept)
        inputs[name] = [(one, form_of(tensors[one])) for one in names]
        shutil.copyfile(made / "program.so", folder / f"{name}.so")
        shutil.copyfile(next(made.glob("*.wrapper.json")), folder / f"{name}.json")  # which operators it calls
    for name, source in sources(recipe).items():  # last, for a class that cannot be traced needs none
        shutil.copyfile(build(source), folder / name)
    shutil.rmtree(scratch)
    files = {file.name: digest(file) for file in sorted(folder.iterdir())}
    (folder / MADE).write_text(json.dumps({"files": files, "inputs": inputs}), "utf-8")


def sources(recipe: Recipe) -> dict[str, Path]:
    """Of our own libraries for this model, by their names in the folder."""
    from drivetrain.engines.native.attention import cpu
    from drivetrain.engines.native.cpu.weight_layout import sources_of_products

    found = {}
    if recipe.with_attention:
        found[ATTENTION] = cpu.SOURCE
    if recipe.with_products:
        found |= {library_of(source): source for source in sources_of_products()}
    return found


def library_of(source: Path) -> str:
    return f"{source.stem}.so"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def form_of(tensor: Any) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several processes that want the same programs, one makes them and the others wait."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_with_parent() -> None:
    os.read(0, 1)  # not a file object, whose lock would be held at the end of the interpreter
    os.killpg(0, signal.SIGKILL)


def _stand_back() -> None:
    """Take only what is left of the cores.

    Niceness is not enough on Linux: the threads of a step meet a thousand times, and each time one of them would wait
    for a nice process to have used its slice. With an idle one they do not wait.
    """
    os.nice(19)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some sandboxes refuse it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main(told: dict[str, Any]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    recipe, folder = Recipe(**told["recipe"]), Path(told["folder"])
    if told["beside"]:
        _stand_back()
    with contextlib.suppress(OSError):  # Linux: where memory runs out, this process goes and not the engine
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    with _alone(folder):
        if (folder / MADE).is_file():
            return
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)  # of one that was killed
        part.mkdir(mode=0o700)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                write_programs(recipe, part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)  # what failed would only fill the disk


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
